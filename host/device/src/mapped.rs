//! A file's bytes without reading it: pages come in when a backend copies weights out.
//!
//! This is the only place that maps files. Invariant: a [`MappedFile`] hands out nothing but `&[u8]`, and whoever
//! reads it treats the bytes as untrusted.

use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::path::Path;

/// A whole file, mapped read-only.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps `path`, which must be a regular file.
    ///
    /// Nothing may shorten or rewrite the file while it is mapped: reading a page that is gone raises SIGBUS.
    /// Replacing it by rename, as downloads do, is harmless. Backends copy weights at load, so the time is short.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Self { map: map(&file)? })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

#[allow(unsafe_code, reason = "mapping a file is unsafe since others may write to it")]
fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is read-only and private to this process's view; nothing here writes to the file. Another
    // process could change it, which the contract of `MappedFile::open` rules out, and the readers assume no more
    // than `&[u8]`: every value in it is checked, and no reference into it is kept as anything but bytes.
    unsafe { Mmap::map(file) }
}

#[cfg(test)]
mod tests {
    use super::MappedFile;
    use std::io::Write;

    #[test]
    fn bytes_are_those_of_the_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"tide").unwrap();
        assert_eq!(MappedFile::open(file.path()).unwrap().bytes(), b"tide");
    }

    #[test]
    fn an_empty_file_is_no_error_and_a_folder_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(MappedFile::open(file.path()).unwrap().bytes().is_empty());
        assert!(MappedFile::open(&std::env::temp_dir()).is_err());
    }
}
