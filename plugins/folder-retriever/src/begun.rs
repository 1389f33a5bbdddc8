//! Marks of files that are being indexed. To index a large file may take more time than a call has: its instance is gone then
//! before anything of the file is kept, and without a mark the next one would begin with that file again, for ever.

use crate::record::{Stamp, fingerprint};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tidegate_plugin_sdk::Error;
use tidegate_plugin_sdk::host::{clock, kv};

/// Smaller files have no mark: they take some milliseconds.
const MARKED_BYTES: u64 = 64 * 1024;
/// Larger files are not begun where no mark is kept: of a default call's CPU time this takes about a fifth.
pub(crate) const UNMARKED_BYTES: u64 = 256 * 1024;
/// So long another instance may still be at work on a file, or as long as its call had, where that is longer.
pub(crate) const AT_WORK_MS: u64 = 10_000;
/// So many keys may be asked for at once.
const KEYS: usize = 1024;
/// So many calls end in a file before it is left out: a caller that goes away ends one, too.
const MAX_ENDED: u32 = 2;
/// After that a file is tried again: there may be more time by then.
const TTL_MS: u64 = 3600 * 1000;

/// What is known of a file whose index is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nobody began with it.
    New,
    /// Somebody did, and may be at work.
    UnderWay,
    /// A call ended in it, for whatever reason.
    Suspect,
    /// As many did as may, and had done nothing else before.
    TooLarge,
}

/// A call that begins with a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// It did nothing else before.
    pub(crate) is_alone: bool,
    /// The time that it had when it came.
    pub(crate) deadline_ms: u32,
}

#[derive(Serialize, Deserialize)]
struct Mark {
    stamp: Stamp,
    /// Calls that began with it and had done nothing else before.
    alone: u32,
    since_unix_ms: u64,
    /// Of the call that began last.
    deadline_ms: u32,
}

impl Mark {
    fn is_at_work(&self) -> bool {
        let since_ms = clock::now_unix_ms().saturating_sub(self.since_unix_ms);
        since_ms < AT_WORK_MS.max(self.deadline_ms.into())
    }
}

/// How a file stands that is now as `stamp` says.
pub(crate) fn standing(path: &str, stamp: &Stamp) -> Standing {
    if stamp.size_bytes < MARKED_BYTES { Standing::New } else { stands(mark(path, stamp)) }
}

/// The suspects among files. Their marks are asked for together: they may be in a database, and the files many.
pub(crate) fn suspects(files: &[(String, Stamp)]) -> BTreeSet<String> {
    let marked: Vec<&(String, Stamp)> = files.iter().filter(|(_, stamp)| stamp.size_bytes >= MARKED_BYTES).collect();
    let mut suspects = BTreeSet::new();
    for some in marked.chunks(KEYS) {
        let keys: Vec<String> = some.iter().map(|(path, _)| key(path)).collect();
        let marks = kv::get_many(&keys).unwrap_or_default();
        let suspect = some.iter().zip(marks).filter(|((_, stamp), bytes)| {
            let mark = bytes.as_ref().and_then(|bytes| parsed(bytes, stamp));
            stands(mark) == Standing::Suspect
        });
        suspects.extend(suspect.map(|((path, _), _)| path.clone()));
    }
    suspects
}

fn stands(mark: Option<Mark>) -> Standing {
    match mark {
        None => Standing::New,
        Some(mark) if mark.is_at_work() => Standing::UnderWay,
        Some(mark) if mark.alone < MAX_ENDED => Standing::Suspect,
        Some(_) => Standing::TooLarge,
    }
}

fn mark(path: &str, stamp: &Stamp) -> Option<Mark> {
    let bytes = kv::get(&key(path)).unwrap_or_default()?;
    parsed(&bytes, stamp)
}

/// Of a file that is still what it was.
fn parsed(bytes: &[u8], stamp: &Stamp) -> Option<Mark> {
    let mark: Option<Mark> = postcard::from_bytes(bytes).ok();
    mark.filter(|mark| mark.stamp == *stamp)
}

/// Marks a file that a call begins with.
pub(crate) fn begin(path: &str, stamp: &Stamp, call: Call) -> Result<(), Error> {
    if stamp.size_bytes < MARKED_BYTES {
        return Ok(());
    }
    let alone = mark(path, stamp).map_or(0, |mark| mark.alone) + u32::from(call.is_alone);
    let mark = Mark { stamp: stamp.clone(), alone, since_unix_ms: clock::now_unix_ms(), deadline_ms: call.deadline_ms };
    let bytes = postcard::to_allocvec(&mark).map_err(|problem| Error::Other(format!("{path}: {problem}")))?;
    kv::set(&key(path), &bytes, Some(TTL_MS))
}

/// Takes a file's mark away.
pub(crate) fn end(path: &str, stamp: &Stamp) -> Result<(), Error> {
    if stamp.size_bytes < MARKED_BYTES { Ok(()) } else { kv::delete(&key(path)) }
}

fn key(path: &str) -> String {
    format!("begun/{:016x}", fingerprint(path))
}
