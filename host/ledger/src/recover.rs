//! After a crash: what began and did not end is settled with what its last mark says.

use crate::call::Calls;
use crate::entry::{Entry, Opening, Record};
use crate::error::LedgerError;
use crate::journal::Journal;
use crate::segment::{self, Found};
use crate::tally::Tokens;
use std::collections::HashMap;

/// What a crash left open.
struct Left {
    opening: Opening,
    tokens: Tokens,
    calls: Calls,
}

/// Ends what earlier processes left open; gives how many there were. Run before anything new begins: numbers of open
/// generations are used again.
pub(crate) fn settle_left(journal: &Journal, now_ms: u64) -> Result<usize, LedgerError> {
    let mut left: HashMap<u64, Left> = HashMap::new();
    let head = journal.head_segment();
    let segments = segment::list(journal.folder()).map_err(LedgerError::file(journal.folder()))?;
    for number in segments.into_iter().filter(|number| *number < head) {
        let path = segment::path(journal.folder(), number);
        let bytes = std::fs::read(&path).map_err(LedgerError::file(path))?;
        replay(&bytes, &mut left);
    }
    let count = left.len();
    let mut bytes = Vec::new();
    for (number, Left { opening, tokens, calls }) in left {
        let entry = Entry { opening, tokens, calls, outcome: "recovered".into(), ended_ms: now_ms };
        if let Err(error) = segment::encode(&Record::End(number, entry), &mut bytes) {
            tracing::error!("what was left open is not billed: {error}");
        }
    }
    if !bytes.is_empty() {
        journal.append(&bytes)?;
        journal.sync()?;
    }
    Ok(count)
}

fn replay(bytes: &[u8], left: &mut HashMap<u64, Left>) {
    let mut at = 0;
    while let Found::Record(record, length) = segment::decode(&bytes[at..]) {
        at += length;
        match *record {
            Record::Open(number, opening) => {
                // One that begins again has gone to another model, with what it had called before.
                let calls = left.remove(&number).map(|before| before.calls).unwrap_or_default();
                left.insert(number, Left { opening, tokens: Tokens::default(), calls });
            }
            Record::Mark(number, tokens) => {
                if let Some(left) = left.get_mut(&number) {
                    left.tokens = tokens;
                }
            }
            Record::MarkCalls(number, calls) => {
                if let Some(left) = left.get_mut(&number) {
                    left.calls = calls;
                }
            }
            Record::End(number, _) => drop(left.remove(&number)),
            // Those for projects, and with calls, are read as the others.
            Record::Alert(_) | Record::OpenFor(..) | Record::EndFor(..) | Record::EndWith(..) => {}
        }
    }
}
