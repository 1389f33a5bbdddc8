//! The journal as it lies on the disk, for whoever checks the books; its gateway may be running.

use crate::drain::Position;
use crate::entry::{Entry, Record};
use crate::error::LedgerError;
use crate::segment::{self, Found};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

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

/// How often the files are listed anew, since one of them was deleted meanwhile.
const TRIES: usize = 20;

/// Reads the journal in `folder`.
pub fn read_journal(folder: &Path) -> Result<Contents, LedgerError> {
    let id = folder.join("id");
    let id = std::fs::read_to_string(&id).map_err(LedgerError::file(&id))?.trim().to_owned();
    let read = read_listed(folder, || segment::list(folder).map_err(LedgerError::file(folder)))?;
    Ok(Contents { id, ..read })
}

/// Reads the files that `list` names. A gateway deletes those that its database has, which may be while they are read: then all
/// begins anew, as if it were read after that. Without the file alone, what ended in it would seem to be open.
fn read_listed(folder: &Path, list: impl Fn() -> Result<Vec<u64>, LedgerError>) -> Result<Contents, LedgerError> {
    let mut tries = 1;
    loop {
        match read_files(folder, list()?) {
            Err((_, error)) if error.kind() == ErrorKind::NotFound && tries < TRIES => tries += 1,
            read => return read.map_err(|(path, cause)| LedgerError::file(path)(cause)),
        }
    }
}

fn read_files(folder: &Path, segments: Vec<u64>) -> Result<Contents, (PathBuf, std::io::Error)> {
    let (mut contents, mut open) = (Contents::default(), BTreeSet::new());
    for number in segments {
        let path = segment::path(folder, number);
        let bytes = std::fs::read(&path).map_err(|error| (path, error))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Tokens;
    use std::cell::Cell;

    #[test]
    fn a_file_that_is_deleted_while_the_journal_is_read_is_read_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = Vec::new();
        segment::encode(&Record::Mark(1, Tokens::default()), &mut bytes).unwrap();
        bytes.extend([0; 64]);
        for number in [1, 3] {
            std::fs::write(segment::path(folder.path(), number), &bytes).unwrap();
        }
        let listed = Cell::new(0);
        let list = |until| {
            listed.set(listed.get() + 1);
            Ok(if listed.get() < until { vec![1, 2, 3] } else { vec![3] })
        };
        assert_eq!(read_listed(folder.path(), || list(3)).unwrap().num_damaged, 1);
        listed.set(0);
        read_listed(folder.path(), || list(usize::MAX)).unwrap_err();
        assert_eq!(listed.get(), TRIES);
    }
}
