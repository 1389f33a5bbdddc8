//! File indexes in the host's storage. A large one is split over several keys, each of which says which version it
//! is part of, so that two instances that write at once, or one that is stopped half way, leave nothing that is read
//! as whole.

use crate::record::{self, FileIndex, Stamp, fingerprint};
use serde::{Deserialize, Serialize};
use tidegate_plugin_sdk::Error;
use tidegate_plugin_sdk::host::kv;

/// Bytes of one value.
const PIECE_BYTES: usize = 128 * 1024;
const MAX_PIECES: u32 = 1024;
/// What nobody asked for in a month goes.
const TTL_MS: u64 = 30 * 24 * 3600 * 1000;
/// How a [`FileIndex`] is written: what was written otherwise is made anew.
const FORMAT: u32 = 2;

#[derive(Serialize, Deserialize)]
struct Piece {
    format: u32,
    stamp: Stamp,
    idx: u32,
    count: u32,
    #[serde(with = "record::bytes")]
    bytes: Vec<u8>,
}

/// What is stored of a file; `None` where that is not what the file is now.
pub(crate) fn load(path: &str, stamp: &Stamp) -> Result<Option<FileIndex>, Error> {
    let first = kv::get(&key(path, 0))?.and_then(|bytes| piece(&bytes, stamp, 0));
    let Some(first) = first else { return Ok(None) };
    let mut bytes = first.bytes;
    for idx in 1..first.count.min(MAX_PIECES) {
        match kv::get(&key(path, idx))?.and_then(|bytes| piece(&bytes, stamp, idx)) {
            Some(piece) if piece.count == first.count => bytes.extend(piece.bytes),
            _ => return Ok(None),
        }
    }
    let file: Option<FileIndex> = postcard::from_bytes(&bytes).ok();
    Ok(file.filter(|file| file.path == path && file.stamp == *stamp))
}

fn piece(bytes: &[u8], stamp: &Stamp, idx: u32) -> Option<Piece> {
    let piece: Piece = postcard::from_bytes(bytes).ok()?;
    (piece.format == FORMAT && piece.stamp == *stamp && piece.idx == idx).then_some(piece)
}

/// Stores a file's index.
pub(crate) fn save(file: &FileIndex) -> Result<(), Error> {
    let encoded = |problem: postcard::Error| Error::Other(format!("{}: {problem}", file.path));
    let bytes = postcard::to_allocvec(file).map_err(encoded)?;
    let count = bytes.len().div_ceil(PIECE_BYTES) as u32;
    for (idx, bytes) in bytes.chunks(PIECE_BYTES).enumerate() {
        let idx = idx as u32;
        let piece = Piece { format: FORMAT, stamp: file.stamp.clone(), idx, count, bytes: bytes.to_vec() };
        kv::set(&key(&file.path, idx), &postcard::to_allocvec(&piece).map_err(encoded)?, Some(TTL_MS))?;
    }
    Ok(())
}

/// Removes what is stored of a file that is gone.
pub(crate) fn remove(path: &str) -> Result<(), Error> {
    for idx in 0..MAX_PIECES {
        let key = key(path, idx);
        if idx > 0 && kv::get(&key)?.is_none() {
            break;
        }
        kv::delete(&key)?;
    }
    Ok(())
}

/// Paths may be longer than keys; two that share a fingerprint replace each other and are told apart by their paths. A new
/// format has the same keys, so that it takes the place of the old one.
fn key(path: &str, idx: u32) -> String {
    format!("v1/{:016x}/{idx}", fingerprint(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin_sdk::host::fake;

    fn file(path: &str, words: usize) -> FileIndex {
        let text: String = (0..words).map(|n| format!("word{n} ")).collect();
        let stamp = Stamp { size_bytes: text.len() as u64, modified_unix_ms: 7, passage_bytes: 800 };
        FileIndex::new(path, stamp, &text)
    }

    #[test]
    fn an_index_comes_back_as_it_was_however_large() {
        for words in [0, 10, 40_000] {
            let file = file("docs/a.txt", words);
            save(&file).unwrap();
            assert_eq!(load(&file.path, &file.stamp).unwrap(), Some(file));
        }
        assert!(fake::kv_keys().len() > 2, "the large one has pieces");
        remove("docs/a.txt").unwrap();
        assert_eq!(fake::kv_keys(), [""; 0]);
    }

    #[test]
    fn what_is_of_another_version_or_torn_is_not_read() {
        let old = file("docs/a.txt", 40_000);
        save(&old).unwrap();
        let newer = Stamp { modified_unix_ms: 8, ..old.stamp.clone() };
        assert_eq!(load(&old.path, &newer).unwrap(), None);
        kv::delete(&key(&old.path, 1)).unwrap();
        assert_eq!(load(&old.path, &old.stamp).unwrap(), None);
        kv::set(&key(&old.path, 0), b"noise", None).unwrap();
        assert_eq!(load(&old.path, &old.stamp).unwrap(), None);
    }
}
