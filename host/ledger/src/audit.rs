//! The journal as it lies on the disk, for whoever checks the books; its gateway may be running.

use crate::drain::Position;
use crate::entry::{Entry, Record};
use crate::error::LedgerError;
use crate::segment::{self, Found};
use std::collections::BTreeSet;
use std::path::Path;

/// What the files of a journal say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The journal's name in a database.
    pub id: String,
    /// Generations that ended and used something, with the place behind their end.
    pub ended: Vec<(Position, Entry)>,
    /// Generations that began and did not end: they run, or a crash left them for the next start.
    pub num_open: usize,
    /// Files with bytes that are no record.
    pub num_damaged: usize,
}

/// Reads the journal in `folder`.
pub fn read_journal(folder: &Path) -> Result<Contents, LedgerError> {
    let id = folder.join("id");
    let mut contents = Contents {
        id: std::fs::read_to_string(&id).map_err(LedgerError::file(&id))?.trim().to_owned(),
        ..Contents::default()
    };
    let mut open = BTreeSet::new();
    for number in segment::list(folder).map_err(LedgerError::file(folder))? {
        let path = segment::path(folder, number);
        let bytes = std::fs::read(&path).map_err(LedgerError::file(path))?;
        contents.read(number, &bytes, &mut open);
    }
    contents.num_open = open.len();
    Ok(contents)
}

impl Contents {
    fn read(&mut self, segment: u64, bytes: &[u8], open: &mut BTreeSet<u64>) {
        let mut at = 0;
        loop {
            match segment::decode(&bytes[at..]) {
                Found::End => return,
                Found::Damage => {
                    self.num_damaged += 1;
                    return;
                }
                Found::Record(record, length) => {
                    at += length;
                    let behind = Position { segment, offset: at as u64 };
                    match *record {
                        Record::Open(number, _) => drop(open.insert(number)),
                        Record::End(number, entry) => {
                            open.remove(&number);
                            if !entry.is_nothing() {
                                self.ended.push((behind, entry));
                            }
                        }
                        Record::Mark(..)
                        | Record::MarkCalls(..)
                        | Record::Alert(_)
                        | Record::OpenFor(..)
                        | Record::EndFor(..)
                        | Record::EndWith(..) => {}
                    }
                }
            }
        }
    }
}
