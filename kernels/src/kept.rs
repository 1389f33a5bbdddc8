//! Files that are kept for the next start: each begins with a digest of itself, so that one that was cut short or
//! changed is made again and never used.

use std::path::{Path, PathBuf};

const DIGEST_BYTES: usize = 32;

/// The contents of a file that is whole.
pub(crate) fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let (digest, contents) = bytes.split_at_checked(DIGEST_BYTES)?;
    (blake3::hash(contents).as_bytes() == digest).then(|| contents.to_vec())
}

/// Written aside, then renamed: nobody sees half of it.
pub(crate) fn write(path: &Path, contents: &[u8]) -> std::io::Result<()> {
    let aside: PathBuf = path.with_extension(format!("{}.tmp", std::process::id()));
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&aside, [&blake3::hash(contents).as_bytes()[..], contents].concat())?;
    std::fs::rename(&aside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_and_a_damaged_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cubins/x.cubin");
        write(&path, b"contents").unwrap();
        assert_eq!(read(&path).as_deref(), Some(&b"contents"[..]));
        let whole = std::fs::read(&path).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[..7], &[&whole[..], b"x"].concat()] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(read(&path), None);
        }
        assert_eq!(std::fs::read_dir(folder.path().join("cubins")).unwrap().count(), 1, "nothing is left aside");
    }
}
