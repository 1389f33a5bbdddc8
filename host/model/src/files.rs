//! Small files, read whole under a cap.

use crate::error::ModelError;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// The bytes of `path`, at most `limit` of them.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, ModelError> {
    let failed = |cause| ModelError::Read { path: path.to_owned(), cause };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(std::io::Error::new(ErrorKind::InvalidInput, "not a regular file")));
    }
    let mut bytes = Vec::new();
    // One byte more than allowed, since a file may grow after its size was asked for.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(ModelError::TooLarge { path: path.to_owned(), bytes: metadata.len(), limit });
    }
    Ok(bytes)
}

/// As [`read`], but a file that does not exist is `None`.
pub(crate) fn read_optional(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ModelError> {
    match read(path, limit) {
        Err(ModelError::Read { cause, .. }) if cause.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}
