//! The journal's files: appended to by whoever settles, read by the drain, deleted once a database has all of them.
//!
//! One `write` for each record, made by the request itself: what is written survives the process. What also has to
//! survive the machine waits for [`Journal::sync`], which a thread beside the one of the marks calls.

use crate::drain::Position;
use crate::entry::{Event, Record};
use crate::error::LedgerError;
use crate::segment::{self, Found};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Bounds of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalLimits {
    /// A file that is longer is followed by a new one.
    pub segment_bytes: u64,
    /// What one read of the drain takes at most.
    pub read_bytes: u64,
}

impl Default for JournalLimits {
    fn default() -> Self {
        Self { segment_bytes: 8 << 20, read_bytes: 1 << 20 }
    }
}

/// An open journal; this process's alone.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    id: Mutex<String>,
    /// The file that was begun when it was opened.
    begun: u64,
    /// Whether a database has said up to where it has it.
    is_placed: AtomicBool,
    limits: JournalLimits,
    head: Mutex<Head>,
    /// Ends of files that are appended to no more, until they are made to last: whoever fills a file does not wait for the disk.
    full: Mutex<Vec<(AtRisk, File)>>,
    /// What could not be made to last.
    at_risk: Mutex<Vec<AtRisk>>,
    pub(crate) grown: Notify,
    /// Locked for as long as it is open.
    _lock: File,
}

/// The file that is appended to.
#[derive(Debug)]
struct Head {
    file: File,
    segment: u64,
    length: u64,
    /// What lies behind `length` is a record that could not be finished.
    torn: bool,
    /// So many bytes were made to last, or are [`AtRisk`].
    synced: u64,
}

/// A part of a file that the system could not make last.
#[derive(Clone, Copy, Debug)]
struct AtRisk {
    segment: u64,
    from: u64,
    to: u64,
}

impl Journal {
    /// Opens the journal in `folder`, which is made where it is not there, and begins a new file.
    pub fn open(folder: &Path, limits: JournalLimits) -> Result<Self, LedgerError> {
        std::fs::create_dir_all(folder).map_err(LedgerError::file(folder))?;
        let lock = lock(folder)?;
        let id = identity(&folder.join("id"))?;
        let last = segment::list(folder).map_err(LedgerError::file(folder))?.last().copied();
        let head = Head::begin(folder, last.map_or(1, |last| last + 1))?;
        Ok(Self {
            folder: folder.to_owned(),
            id: Mutex::new(id),
            begun: head.segment,
            is_placed: AtomicBool::new(false),
            limits,
            head: Mutex::new(head),
            full: Mutex::default(),
            at_risk: Mutex::default(),
            grown: Notify::new(),
            _lock: lock,
        })
    }

    /// Names this journal to a database that takes several.
    pub fn id(&self) -> String {
        self.id.lock().clone()
    }

    /// From where a database takes it that has it up to `known`. Where that is behind all that lay in the folder when it was
    /// opened, the folder is an earlier one, restored or copied: what comes now would be taken for what the database has. It gets
    /// another name then, and is read from its start, of which the database keeps what it has not.
    pub(crate) fn place(&self, known: Position) -> Result<Position, LedgerError> {
        if self.is_placed.load(Ordering::Relaxed) || known <= (Position { segment: self.begun, offset: 0 }) {
            self.is_placed.store(true, Ordering::Relaxed);
            return Ok(known);
        }
        *self.id.lock() = new_identity(&self.folder.join("id"))?;
        self.is_placed.store(true, Ordering::Relaxed);
        tracing::error!(folder = %self.folder.display(), "the database knows more of this journal than there is of it: it was restored, or is a copy; it goes on under another name, and what the database has is not billed again");
        Ok(Position::default())
    }

    /// Appends encoded records whole, or nothing. Gives the segment that has them.
    pub(crate) fn append(&self, bytes: &[u8]) -> Result<u64, LedgerError> {
        let mut head = self.head.lock();
        if head.torn {
            head.mend().map_err(LedgerError::file(segment::path(&self.folder, head.segment)))?;
        }
        if head.length >= self.limits.segment_bytes {
            self.rotate(&mut head)?;
        }
        if let Err(cause) = head.file.write_all(bytes) {
            head.torn = true;
            return Err(LedgerError::file(segment::path(&self.folder, head.segment))(cause));
        }
        head.length += bytes.len() as u64;
        let segment = head.segment;
        drop(head);
        self.grown.notify_one();
        Ok(segment)
    }

    /// Makes what was appended survive a loss of power.
    pub(crate) fn sync(&self) -> Result<(), LedgerError> {
        self.save()?;
        let (full, last) = {
            let mut head = self.head.lock();
            let last = head.take_unsynced().map(|part| (part, head.file.try_clone()));
            (std::mem::take(&mut *self.full.lock()), last)
        };
        // In the order of their writing, each whatever became of those before: what is not noted here is noted nowhere.
        let parts = full.into_iter().map(|(part, file)| (part, Ok(file))).chain(last);
        let outcomes: Vec<_> = parts.map(|(part, file)| self.make_last(part, file)).collect();
        outcomes.into_iter().collect()
    }

    /// Notes a part that could not be made to last.
    fn make_last(&self, part: AtRisk, file: std::io::Result<File>) -> Result<(), LedgerError> {
        let folder = || if part.from == 0 { File::open(&self.folder)?.sync_all() } else { Ok(()) };
        let outcome = file.and_then(|file| file.sync_data()).and_then(|()| folder());
        outcome.map_err(|cause| {
            self.at_risk.lock().push(part);
            LedgerError::file(segment::path(&self.folder, part.segment))(cause)
        })
    }

    /// Makes what could not be made to last so, with what is left of it in memory.
    fn save(&self) -> Result<(), LedgerError> {
        let mut at_risk = self.at_risk.lock();
        while let Some(part) = at_risk.last() {
            let path = segment::path(&self.folder, part.segment);
            match rewrite(&path, part.from, part.to) {
                // The database has it by now.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                outcome => outcome.map_err(LedgerError::file(path))?,
            }
            at_risk.pop();
        }
        Ok(())
    }

    fn rotate(&self, head: &mut Head) -> Result<(), LedgerError> {
        let next = Head::begin(&self.folder, head.segment + 1)?;
        let mut old = std::mem::replace(head, next);
        self.full.lock().extend(old.take_unsynced().map(|part| (part, old.file)));
        Ok(())
    }

    /// The events behind `from`, and the place behind them; as far as one read goes.
    pub(crate) fn read(&self, from: Position) -> Result<(Vec<Event>, Position), LedgerError> {
        let (segment, end) = {
            let head = self.head.lock();
            (head.segment, head.length)
        };
        let mut from = from;
        loop {
            let path = segment::path(&self.folder, from.segment);
            let bytes = match read_file(&path, from.offset, self.limits.read_bytes) {
                Err(error) if error.kind() == ErrorKind::NotFound && from.segment < segment => Vec::new(),
                bytes => bytes.map_err(LedgerError::file(&path))?,
            };
            let is_head = from.segment == segment;
            let known =
                if is_head { usize::try_from(end.saturating_sub(from.offset)).unwrap_or(0) } else { bytes.len() };
            let Part { events, used, is_damaged } = events(&bytes[..known.min(bytes.len())]);
            let reached = Position { segment: from.segment, offset: from.offset + used as u64 };
            let next = Position { segment: from.segment + 1, offset: 0 };
            if is_damaged {
                tracing::error!(file = %path.display(), at = reached.offset, "the journal is damaged here; the rest of this file is not billed");
                self.leave(from.segment)?;
                return Ok((events, next));
            }
            if used > 0 || is_head {
                return Ok((events, reached));
            }
            // Nothing more in a file that is not appended to any more.
            from = next;
        }
    }

    /// What comes from now on goes to another file than this one.
    fn leave(&self, segment: u64) -> Result<(), LedgerError> {
        let mut head = self.head.lock();
        if head.segment == segment { self.rotate(&mut head) } else { Ok(()) }
    }

    /// Deletes the files before `segment`.
    pub(crate) fn forget_before(&self, segment: u64) -> Result<(), LedgerError> {
        let segments = segment::list(&self.folder).map_err(LedgerError::file(&self.folder))?;
        for old in segments.into_iter().filter(|old| *old < segment) {
            let path = segment::path(&self.folder, old);
            std::fs::remove_file(&path).map_err(LedgerError::file(path))?;
        }
        Ok(())
    }

    /// Where the newest file begins.
    pub(crate) fn head_segment(&self) -> u64 {
        self.head.lock().segment
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Head {
    fn begin(folder: &Path, segment: u64) -> Result<Self, LedgerError> {
        let path = segment::path(folder, segment);
        let file = OpenOptions::new().create_new(true).read(true).append(true).open(&path);
        Ok(Self { file: file.map_err(LedgerError::file(path))?, segment, length: 0, torn: false, synced: 0 })
    }

    /// What was not made to last, which is somebody's to do now.
    fn take_unsynced(&mut self) -> Option<AtRisk> {
        let part = AtRisk { segment: self.segment, from: self.synced, to: self.length };
        self.synced = self.length;
        (part.from < part.to).then_some(part)
    }

    /// Cuts off what could not be finished.
    fn mend(&mut self) -> std::io::Result<()> {
        self.file.set_len(self.length)?;
        self.torn = false;
        Ok(())
    }
}

/// What was found in a part of a file.
struct Part {
    /// What somebody is told.
    events: Vec<Event>,
    /// Bytes that were understood.
    used: usize,
    /// What follows them is no record. Where the next one would begin is not known.
    is_damaged: bool,
}

/// The records at the start of `bytes`.
fn events(bytes: &[u8]) -> Part {
    let mut read = Part { events: Vec::new(), used: 0, is_damaged: false };
    loop {
        match segment::decode(&bytes[read.used..]) {
            Found::Record(record, length) => {
                read.used += length;
                match *record {
                    // What was refused before anything was generated is no use of anything.
                    Record::End(_, entry) if entry.is_nothing() => {}
                    Record::End(_, entry) => read.events.push(Event::Used(entry)),
                    Record::Alert(alert) => read.events.push(Event::Alert(alert)),
                    Record::Open(..)
                    | Record::Mark(..)
                    | Record::MarkCalls(..)
                    | Record::OpenFor(..)
                    | Record::EndFor(..)
                    | Record::EndWith(..) => {}
                }
            }
            Found::End => return read,
            Found::Damage => return Part { is_damaged: true, ..read },
        }
    }
}

fn read_file(path: &Path, offset: u64, most: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes what lies there once more. A system that failed to write it takes it for written from then on, and would call a second
/// try a success that does nothing (<https://wiki.postgresql.org/wiki/Fsync_Errors>).
fn rewrite(path: &Path, from: u64, to: u64) -> std::io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    (&file).take(to - from).read_to_end(&mut bytes)?;
    file.seek(SeekFrom::Start(from))?;
    file.write_all(&bytes)?;
    file.sync_data()
}

fn lock(folder: &Path) -> Result<File, LedgerError> {
    let path = folder.join("lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(LedgerError::file(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(LedgerError::InUse(folder.to_owned())),
        Err(std::fs::TryLockError::Error(cause)) => Err(LedgerError::file(path)(cause)),
    }
}

/// A name that no other journal has, kept in a file.
fn identity(path: &Path) -> Result<String, LedgerError> {
    match std::fs::read_to_string(path) {
        Ok(id) if !id.trim().is_empty() => return Ok(id.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(cause) => return Err(LedgerError::file(path)(cause)),
    }
    new_identity(path)
}

fn new_identity(path: &Path) -> Result<String, LedgerError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| LedgerError::file(path)(std::io::Error::other(error.to_string())))?;
    let id = format!("{:032x}", u128::from_le_bytes(bytes));
    std::fs::write(path, &id).map_err(LedgerError::file(path))?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::replace;

    /// Takes what is written to it, and can make nothing last.
    fn unreliable() -> File {
        OpenOptions::new().read(true).append(true).open("/dev/null").unwrap()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_could_not_be_made_to_last_is_not_taken_for_lasting() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path(), JournalLimits::default()).unwrap();
        journal.append(b"one").unwrap();
        journal.sync().unwrap();
        let segment = journal.append(b"two").unwrap();
        let (path, aside) = (segment::path(folder.path(), segment), folder.path().join("aside"));
        let file = replace(&mut journal.head.lock().file, unreliable());
        journal.sync().unwrap_err();
        // Nor can it be written once more.
        std::fs::rename(&path, &aside).unwrap();
        std::fs::create_dir(&path).unwrap();
        for _ in 0..2 {
            journal.sync().unwrap_err();
        }
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
        journal.head.lock().file = file;
        journal.sync().unwrap();
        assert!(journal.at_risk.lock().is_empty());
        assert_eq!(std::fs::read(&path).unwrap(), b"onetwo");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_that_did_not_last_when_it_was_full_is_written_once_more() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path(), JournalLimits { segment_bytes: 1, ..Default::default() }).unwrap();
        let segment = journal.append(b"one").unwrap();
        let path = segment::path(folder.path(), segment);
        journal.head.lock().file = unreliable();
        journal.append(b"two").unwrap();
        assert_eq!((journal.full.lock().len(), journal.at_risk.lock().len()), (1, 0), "who fills it does not wait");
        journal.sync().unwrap_err();
        assert_eq!((journal.full.lock().len(), journal.at_risk.lock().len()), (0, 1));
        assert!(journal.head.lock().take_unsynced().is_none(), "what came behind it lasts");
        journal.sync().unwrap();
        assert_eq!((journal.at_risk.lock().len(), std::fs::read(&path).unwrap()), (0, b"one".to_vec()));
        // Deleted, since the database has it.
        journal.append(b"two").unwrap();
        journal.head.lock().file = unreliable();
        journal.append(b"three").unwrap();
        journal.sync().unwrap_err();
        journal.forget_before(journal.head_segment()).unwrap();
        journal.sync().unwrap();
    }
}
