//! The files of a test.

use super::hand_over;
use crate::host::documents::Entry;
use crate::plugin::Error;
use std::cell::RefCell;
use std::collections::BTreeMap;

const MAX_READ: u32 = 1 << 20;
const MAX_LIST: u32 = 1000;
const MAX_PATH_BYTES: usize = 4096;

#[derive(Default)]
struct Files {
    /// When each was changed last, and what is in it.
    files: BTreeMap<String, (u64, Vec<u8>)>,
    reads: Vec<String>,
}

thread_local! {
    static FILES: RefCell<Files> = RefCell::default();
}

/// Puts a file, changed at `modified_unix_ms`.
pub fn put_file(path: &str, modified_unix_ms: u64, bytes: &[u8]) {
    FILES.with_borrow_mut(|f| f.files.insert(path.into(), (modified_unix_ms, bytes.to_vec())));
}

/// Removes a file.
pub fn remove_file(path: &str) {
    FILES.with_borrow_mut(|f| f.files.remove(path));
}

/// Paths that were read since the last call, in order.
pub fn take_reads() -> Vec<String> {
    FILES.with_borrow_mut(|f| std::mem::take(&mut f.reads))
}

/// Sorted by the parts of their paths: `docs/a/z` is before `docs/a-b`.
pub(in crate::host) fn list(after: Option<&str>, limit: u32) -> Result<Vec<Entry>, Error> {
    hand_over("documents.list", &[&after]);
    check_path(after.unwrap_or_default())?;
    let entry = |(path, (modified, bytes)): (&String, &(u64, Vec<u8>))| Entry {
        path: path.clone(),
        size_bytes: bytes.len() as u64,
        modified_unix_ms: *modified,
    };
    let is_behind = |path: &str| after.is_none_or(|after| path.split('/').gt(after.split('/')));
    FILES.with_borrow(|f| {
        let mut entries: Vec<Entry> = f.files.iter().filter(|(path, _)| is_behind(path)).map(entry).collect();
        entries.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
        entries.truncate(limit.min(MAX_LIST) as usize);
        Ok(entries)
    })
}

pub(in crate::host) fn read(path: &str, offset: u64, len: u32) -> Result<Vec<u8>, Error> {
    hand_over("documents.read", &[&path]);
    check_path(path)?;
    FILES.with_borrow_mut(|f| {
        f.reads.push(path.into());
        let (_, bytes) = f.files.get(path).ok_or_else(|| Error::InvalidInput(format!("no document `{path}`")))?;
        let rest = bytes.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        Ok(rest.iter().take(len.min(MAX_READ) as usize).copied().collect())
    })
}

fn check_path(path: &str) -> Result<(), Error> {
    if path.len() > MAX_PATH_BYTES {
        let message = format!("a path of {} bytes; at most {MAX_PATH_BYTES}", path.len());
        return Err(Error::InvalidInput(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::documents;

    #[test]
    fn pages_of_any_size_give_the_same_list_in_order() {
        let sorted = ["docs/a/b/c.txt", "docs/a/z.txt", "docs/a-b.txt", "docs/b.txt"];
        sorted.iter().rev().for_each(|path| put_file(path, 1, b"0123456789"));
        for limit in 1..=5 {
            let mut paged: Vec<String> = Vec::new();
            loop {
                let page = documents::list(paged.last().map(String::as_str), limit).unwrap();
                if page.is_empty() {
                    break;
                }
                paged.extend(page.into_iter().map(|entry| entry.path));
            }
            assert_eq!(paged, sorted, "limit {limit}");
        }
    }

    #[test]
    fn a_page_and_a_read_have_bounds() {
        (0..1001).for_each(|n| put_file(&format!("docs/{n}.txt"), 1, b""));
        assert_eq!(documents::list(None, u32::MAX).unwrap().len(), 1000);
        put_file("docs/long", 1, &vec![b'x'; MAX_READ as usize + 1]);
        assert_eq!(documents::read("docs/long", 0, u32::MAX).unwrap().len(), MAX_READ as usize);
        assert_eq!(documents::read("docs/long", MAX_READ.into(), 9).unwrap(), b"x");
        assert_eq!(documents::read("docs/long", u64::MAX, 9).unwrap(), b"");
        let long = "x".repeat(MAX_PATH_BYTES + 1);
        assert!(matches!(documents::read(&long, 0, 1), Err(Error::InvalidInput(_))));
        assert!(matches!(documents::list(Some(&long), 1), Err(Error::InvalidInput(_))));
    }
}
