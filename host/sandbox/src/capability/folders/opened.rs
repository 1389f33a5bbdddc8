//! Folders and files as they are opened: each name in the folder that was opened before it, and none that is a link. Whoever may
//! write to a folder can put a link in the place of one in it at any moment. What was opened stays what it was, so that what
//! is listed, looked at and read is one.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, open, openat, statat};
use rustix::io::{Errno, Result as Done, retry_on_intr};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// To open others in it; who may not list a folder may go through it.
#[cfg(target_os = "linux")]
const THROUGH: OFlags = OFlags::PATH.union(FOLDER);
#[cfg(not(target_os = "linux"))]
const THROUGH: OFlags = FOLDER;
const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// What is no file after all keeps nobody waiting for who writes to it.
const FILE: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A folder.
pub(super) struct Folder(OwnedFd);

/// What a name is of.
#[derive(Debug)]
pub(super) struct About {
    pub(super) kind: FileType,
    pub(super) size_bytes: u64,
    /// 0 where that is not known.
    pub(super) modified_unix_ms: u64,
}

impl Folder {
    /// The one of a path in which every link is resolved. There must be none by now, either.
    pub(super) fn root(path: &Path) -> Result<Self> {
        let folder = Self(opened(|| open(path, THROUGH, Mode::empty()))?);
        let place = folder.place().map_or_else(|| path.canonicalize(), Ok)?;
        if place == path { Ok(folder) } else { Err(no_plain("folder")) }
    }

    /// Where it lies, in the kernel's words; `None` where nobody says it.
    fn place(&self) -> Option<PathBuf> {
        let place = std::fs::read_link(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        place.ok().filter(|_| cfg!(target_os = "linux"))
    }

    /// A folder in it.
    pub(super) fn folder(&self, name: &str) -> Result<Self> {
        opened(|| openat(&self.0, name, THROUGH, Mode::empty())).map(Self)
    }

    /// A file in it, to read. What is none is not opened, as far as that can be known before.
    pub(super) fn file(&self, name: &str) -> Result<File> {
        if self.about(name)?.kind.is_file() { self.file_at_once(name) } else { Err(no_plain("file")) }
    }

    pub(super) fn file_at_once(&self, name: &str) -> Result<File> {
        let file = File::from(opened(|| openat(&self.0, name, FILE, Mode::empty()))?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(no_plain("file")) }
    }

    /// What is of that name in it, be it a link.
    pub(super) fn about(&self, name: &str) -> Result<About> {
        let stat = retry_on_intr(|| statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        Ok(About { kind, size_bytes: stat.st_size.try_into().unwrap_or_default(), modified_unix_ms: modified(&stat) })
    }

    /// The names in it.
    pub(super) fn names(&self) -> Result<impl Iterator<Item = Result<OsString>> + use<>> {
        let names = Dir::new(opened(|| openat(&self.0, ".", FOLDER, Mode::empty()))?)?;
        let names = names.map(|entry| Ok(OsString::from_vec(entry?.file_name().to_bytes().to_vec())));
        Ok(names.filter(|name| name.as_ref().map_or(true, |name: &OsString| name != "." && name != "..")))
    }
}

fn opened(open: impl FnMut() -> Done<OwnedFd>) -> Result<OwnedFd> {
    retry_on_intr(open).map_err(|errno| if errno == Errno::LOOP { no_plain("file") } else { errno.into() })
}

fn no_plain(what: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("not a plain {what}"))
}

fn modified(stat: &Stat) -> u64 {
    let within = (stat.st_mtime_nsec / 1_000_000) as i64;
    stat.st_mtime.saturating_mul(1000).saturating_add(within).try_into().unwrap_or_default()
}
