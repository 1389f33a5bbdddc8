//! What can go wrong with the journal.

use std::io;
use std::path::PathBuf;

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Another process writes this journal.
    #[error("the journal {0} is in use by another process; give each gateway a store path of its own")]
    InUse(PathBuf),
    /// A file cannot be made, read or written.
    #[error("the journal's file {path}: {cause}")]
    File {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// A record cannot be written down; a defect.
    #[error("a record cannot be encoded: {0}")]
    Encode(#[from] postcard::Error),
    /// A record is longer than any may be; a defect.
    #[error("a record has {bytes} bytes; the most is {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The most that is read back.
        limit: usize,
    },
    /// The thread that keeps time cannot be started.
    #[error("the journal's thread cannot be started: {0}")]
    Thread(io::Error),
}

impl LedgerError {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::File { path, cause }
    }
}
