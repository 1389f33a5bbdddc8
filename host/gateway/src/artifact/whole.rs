//! Files that several commands may change at once, each perhaps the first process of a container of its own: who changes
//! one holds it from reading to writing, and what is written is there whole or not at all.

use anyhow::{Context, bail};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How a file ends that is still being written.
const UNFINISHED: &str = ".tmp";
/// How often somebody else may be faster to make the file that is held.
const MAX_TURNS: usize = 10_000;

/// Why nobody can have a folder's names on the disk.
const MAY_NOT_SYNC: [ErrorKind; 3] = [ErrorKind::InvalidInput, ErrorKind::Unsupported, ErrorKind::PermissionDenied];

/// The right to change what a file stands for, until this is dropped. The system takes it from a process that ends.
pub struct Held {
    file: PathBuf,
    _open: File,
}

impl Held {
    /// Waits, blocking, until nobody else has it.
    pub(super) fn wait(file: &Path) -> anyhow::Result<Self> {
        for _ in 0..MAX_TURNS {
            let open = File::options().write(true).create(true).truncate(false).open(file);
            // Another user's can be waited for all the same.
            let open = open.or_else(|error| File::open(file).map_err(|_| error));
            let open = open.with_context(|| format!("cannot make {}", file.display()))?;
            lock(&open, file)?;
            if is_at(&open, file) {
                return Ok(Self { file: file.to_owned(), _open: open });
            }
        }
        bail!("{} was another file each of the {MAX_TURNS} times that it was locked", file.display())
    }
}

impl Drop for Held {
    /// The file goes while it is held: who has waited for it sees that it is no longer there, and makes the next.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

fn lock(open: &File, file: &Path) -> anyhow::Result<()> {
    let locked = match open.try_lock() {
        Err(TryLockError::WouldBlock) => {
            tracing::warn!("waiting for another command, which holds {}", file.display());
            open.lock()
        }
        Err(TryLockError::Error(error)) => Err(error),
        Ok(()) => Ok(()),
    };
    match locked {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            tracing::warn!("{} cannot be locked there; let no two commands change it at once", file.display());
            Ok(())
        }
        locked => locked.with_context(|| format!("cannot lock {}", file.display())),
    }
}

/// Whether an open file is the one of that name.
fn is_at(open: &File, file: &Path) -> bool {
    let same = |one: std::fs::Metadata, other: std::fs::Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    open.metadata().and_then(|one| Ok(same(one, std::fs::metadata(file)?))).unwrap_or(false)
}

/// Writes a file, unless it is there and has these bytes: whoever watches it takes each writing for a change. Says whether it was
/// written.
pub(super) fn write(file: &Path, bytes: &[u8]) -> anyhow::Result<bool> {
    if has(file, bytes) {
        return Ok(false);
    }
    write_anew(file, bytes)?;
    Ok(true)
}

/// Writes a file, whatever it has. The old one is there until the new one is, whole: where the power fails, too. Where writing
/// fails, nothing else is left.
pub(crate) fn write_anew(file: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let written = beside(file).and_then(|(mut open, aside)| {
        // A name that reaches the disk before the bytes would lead to an empty file.
        let done = open.write_all(bytes).and_then(|()| open.sync_all()).and_then(|()| std::fs::rename(&aside, file));
        done.inspect_err(|_| drop(std::fs::remove_file(&aside)))
    });
    written.with_context(|| format!("cannot write {}", file.display()))?;
    sync_folder(file)
}

/// Whether a file has these bytes. A longer one is not read.
fn has(file: &Path, bytes: &[u8]) -> bool {
    let is_as_long = std::fs::metadata(file).is_ok_and(|about| about.is_file() && about.len() == bytes.len() as u64);
    is_as_long && std::fs::read(file).is_ok_and(|there| there == bytes)
}

/// Has the names in a file's folder on the disk: of what is written later none is there without this one.
fn sync_folder(file: &Path) -> anyhow::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Some systems of files know of no such request, and some folders are written to and not read.
        Err(error) if MAY_NOT_SYNC.contains(&error.kind()) => Ok(()),
        synced => synced.with_context(|| format!("cannot have {} on the disk", folder.display())),
    }
}

/// A new file in the same folder. Processes of several containers have one number.
fn beside(file: &Path) -> std::io::Result<(File, PathBuf)> {
    let process = std::process::id();
    let mut number = 0_u64;
    loop {
        let aside = file.with_file_name(format!(".{process}-{number}{UNFINISHED}"));
        match File::options().write(true).create_new(true).open(&aside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            opened => return opened.map(|open| (open, aside)),
        }
    }
}

/// Whether a name is that of a file whose writing broke off.
pub(super) fn is_unfinished(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(UNFINISHED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_changed_by_one_at_a_time_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let (file, held) = (folder.path().join("count"), folder.path().join(".held"));
        std::fs::write(&file, "0").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let _held = Held::wait(&held).unwrap();
                        let count: u32 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
                        write(&file, (count + 1).to_string().as_bytes()).unwrap();
                    }
                });
            }
        });
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "200");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    }

    /// As if each were the only process of its container.
    #[test]
    fn writers_of_one_number_write_each_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let texts: Vec<Vec<u8>> = (0..8).map(|n| vec![b'a' + n; 1 << 16]).collect();
        std::thread::scope(|scope| {
            for text in &texts {
                scope.spawn(|| (0..50).for_each(|_| _ = write(&file, text).unwrap()));
            }
        });
        assert!(texts.contains(&std::fs::read(&file).unwrap()));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn what_is_there_already_is_not_written_and_what_is_otherwise_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let inode = || std::fs::metadata(&file).unwrap().ino();
        write(&file, b"text").unwrap();
        let first = std::fs::File::open(&file).unwrap();
        let before = inode();
        assert!(!write(&file, b"text").unwrap());
        assert_eq!(inode(), before);
        for other in [b"Text".as_slice(), b"text and more"] {
            assert!(write(&file, other).unwrap());
            assert_eq!(std::fs::read(&file).unwrap(), other);
        }
        // The first one's number is not given anew while it is open.
        assert_ne!(inode(), before);
        drop(first);
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("file")).unwrap();
        assert!(write(&folder.path().join("file"), b"text").is_err());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    }
}
