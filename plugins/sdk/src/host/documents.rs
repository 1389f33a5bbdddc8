//! Read-only folders that the operator mounted. Needs [`crate::Capability::Documents`].

// On wasm the values are the contract's, and are converted.
#![cfg_attr(not(target_arch = "wasm32"), expect(clippy::needless_question_mark, clippy::useless_conversion))]

use crate::plugin::Error;

#[cfg(target_arch = "wasm32")]
use crate::wasm::bindings::documents::tidegate::plugin::documents as imp;

#[cfg(not(target_arch = "wasm32"))]
use super::fake::documents as imp;

/// A file. The first part of its path is the mount's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
    /// When it changed last.
    pub modified_unix_ms: u64,
}

/// Files in the order of their paths, behind `after`, at most `limit`. An empty list is the end.
///
/// # Errors
/// What the host says: no grant, or the folder is not to be read.
pub fn list(after: Option<&str>, limit: u32) -> Result<Vec<Entry>, Error> {
    Ok(imp::list(after, limit)?.into_iter().map(Entry::from).collect())
}

/// At most `len` bytes of a file from `offset`; fewer at its end.
///
/// # Errors
/// What the host says: no such file, no grant, or it is not to be read.
pub fn read(path: &str, offset: u64, len: u32) -> Result<Vec<u8>, Error> {
    Ok(imp::read(path, offset, len)?)
}
