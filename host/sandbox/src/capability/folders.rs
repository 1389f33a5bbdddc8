//! Documents in folders of this machine. A path is a mount's name and plain names below it. Invariant: what is read
//! lies under the mounted folder after every symbolic link is resolved, and no link is followed inside it: links are
//! neither listed nor opened, so that who may write to the folder cannot show a plugin other files.
//!
//! A folder may hang, as one of another machine does that is away, and nothing ends a read in it. So a plugin has a few at
//! once, each until it has ended, be its call gone long before: it takes no more threads than that from others.

mod said;

use super::{BoxFuture, CapabilityError, DocumentEntry, DocumentStore, Documents};
use said::Said;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// Folders within folders that are looked into.
const MAX_DEPTH: usize = 32;
/// Names in one folder; a larger one is refused rather than shown in part.
const MAX_NAMES: usize = 100_000;

/// Reads of one plugin's documents at once.
const MAX_READS: usize = 8;
/// How long a call waits for one of those to end: many times as long as a read takes in a folder that answers.
const PATIENCE: Duration = Duration::from_millis(500);

/// Opens folders.
pub struct Folders;

impl DocumentStore for Folders {
    fn open(&self, mounts: &BTreeMap<String, PathBuf>) -> Result<Arc<dyn Documents>, String> {
        let roots = mounts.iter().map(|(name, folder)| Ok((mount_name(name)?, root(name, folder)?)));
        Ok(Arc::new(Mounts::new(roots.collect::<Result<_, String>>()?)))
    }
}

fn mount_name(name: &str) -> Result<String, String> {
    if is_plain(name) { Ok(name.into()) } else { Err(format!("`{name}` is no plain name for a mount")) }
}

fn root(name: &str, folder: &Path) -> Result<PathBuf, String> {
    let root = folder.canonicalize().map_err(|e| format!("mount `{name}`: folder `{}`: {e}", folder.display()))?;
    if root.is_dir() { Ok(root) } else { Err(format!("mount `{name}`: `{}` is not a folder", folder.display())) }
}

/// A name that stays in its folder.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

struct Mounts {
    roots: BTreeMap<String, PathBuf>,
    /// Reads that may begin.
    reads: Arc<Semaphore>,
    said: Said,
}

impl Documents for Mounts {
    fn list(
        self: Arc<Self>,
        after: Option<String>,
        limit: u32,
    ) -> BoxFuture<'static, Result<Vec<DocumentEntry>, CapabilityError>> {
        Box::pin(async move {
            let mounts = Arc::clone(&self);
            self.blocking(move || mounts.list_now(after.as_deref(), limit as usize)).await
        })
    }

    fn read(
        self: Arc<Self>,
        path: String,
        offset: u64,
        len: u32,
    ) -> BoxFuture<'static, Result<Vec<u8>, CapabilityError>> {
        Box::pin(async move {
            let mounts = Arc::clone(&self);
            self.blocking(move || mounts.read_now(&path, offset, len)).await
        })
    }
}

impl Mounts {
    fn new(roots: BTreeMap<String, PathBuf>) -> Self {
        Self { roots, reads: Arc::new(Semaphore::new(MAX_READS)), said: Said::default() }
    }

    /// Reads beside the calls' threads. The right to that goes with the work, and not with who waits for it.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, CapabilityError> + Send + 'static,
    ) -> Result<T, CapabilityError> {
        let right = tokio::time::timeout(PATIENCE, Arc::clone(&self.reads).acquire_owned()).await;
        let right = right.ok().and_then(Result::ok).ok_or_else(|| {
            let message = format!("{MAX_READS} reads of documents of this plugin have not ended; a folder may be away");
            CapabilityError::Unavailable(message)
        })?;
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(right);
            done
        });
        done.await.unwrap_or_else(|error| Err(CapabilityError::Unavailable(format!("reading stopped: {error}"))))
    }

    fn read_now(&self, path: &str, offset: u64, len: u32) -> Result<Vec<u8>, CapabilityError> {
        let mut file = self.open_file(path)?;
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(offset))
            .and_then(|_| file.take(len.into()).read_to_end(&mut bytes))
            .map_err(|error| unreadable(path, &error, &self.said))?;
        self.said.is_over(path);
        Ok(bytes)
    }

    fn open_file(&self, path: &str) -> Result<File, CapabilityError> {
        let mut names = path.split('/');
        let mount = names.next().and_then(|name| self.roots.get(name));
        let mut full = mount.ok_or_else(|| not_there(path))?.clone();
        for name in names {
            if !is_plain(name) {
                return Err(CapabilityError::Invalid(format!("`{}` is no path of a document", path.escape_debug())));
            }
            full.push(name);
        }
        open_unlinked(&full).map_err(|error| unreadable(path, &error, &self.said))
    }

    fn list_now(&self, after: Option<&str>, limit: usize) -> Result<Vec<DocumentEntry>, CapabilityError> {
        let after: Vec<&str> = after.map_or_else(Vec::new, |path| path.split('/').collect());
        let mut page = Page { entries: Vec::new(), limit, said: &self.said };
        for (name, root) in &self.roots {
            if let Some(below) = rest_of(&after, name) {
                walk(root, name, below, MAX_DEPTH, &mut page)?;
            }
        }
        Ok(page.entries)
    }
}

/// A file that is what its path says, no link on the way.
fn open_unlinked(path: &Path) -> std::io::Result<File> {
    let link = || std::io::Error::new(ErrorKind::NotFound, "not a plain file");
    if path.canonicalize()? != path || !fs::symlink_metadata(path)?.is_file() {
        return Err(link());
    }
    let file = File::open(path)?;
    // Someone may have put a link there in between, or in the place of a folder on the way, and taken it back: what was opened
    // must be what lies there, unlinked, now.
    let (opened, there) = (file.metadata()?, fs::symlink_metadata(path)?);
    if place_of(&file).is_some_and(|place| place != path)
        || !opened.is_file()
        || !is_same(&opened, &there)
        || path.canonicalize()? != path
    {
        return Err(link());
    }
    Ok(file)
}

/// Where an open file lies, in the kernel's words; `None` where nobody says it.
#[cfg(target_os = "linux")]
fn place_of(file: &File) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

#[cfg(not(target_os = "linux"))]
fn place_of(_: &File) -> Option<PathBuf> {
    None
}

#[cfg(unix)]
fn is_same(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same(a: &Metadata, b: &Metadata) -> bool {
    b.is_file() && a.len() == b.len()
}

struct Page<'a> {
    entries: Vec<DocumentEntry>,
    limit: usize,
    said: &'a Said,
}

/// What of `after` is left below `name`: nothing to skip when `name` sorts behind it, `None` when all of `name` is
/// skipped.
fn rest_of<'a>(after: &'a [&'a str], name: &str) -> Option<&'a [&'a str]> {
    match after.first() {
        None => Some(&[]),
        Some(first) => match name.cmp(first) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(&after[1..]),
            std::cmp::Ordering::Greater => Some(&[]),
        },
    }
}

/// Adds the documents of a folder and those below it, in order.
fn walk(folder: &Path, shown: &str, after: &[&str], depth: usize, page: &mut Page<'_>) -> Result<(), CapabilityError> {
    for name in names(folder, shown, depth < MAX_DEPTH, page.said)? {
        if page.entries.len() >= page.limit {
            break;
        }
        let Some(below) = rest_of(after, &name) else { continue };
        let skip_itself = after.first().is_some_and(|first| *first == name) && below.is_empty();
        let (path, shown) = (folder.join(&name), format!("{shown}/{name}"));
        // A file that vanished meanwhile is simply not listed.
        let Ok(about) = fs::symlink_metadata(&path) else { continue };
        if about.is_dir() && depth > 0 {
            walk(&path, &shown, below, depth - 1, page)?;
        } else if about.is_file() && !skip_itself {
            page.entries.push(entry(shown, &about));
        }
    }
    Ok(())
}

/// What is in a folder. One below a mount that this server may not read, such as `lost+found` of a whole disk, or that has
/// vanished meanwhile, keeps nobody from the others.
fn names(folder: &Path, shown: &str, is_below: bool, said: &Said) -> Result<Vec<String>, CapabilityError> {
    let mut names = Vec::new();
    let listed = match fs::read_dir(folder) {
        Err(error) if is_below && is_left_out(error.kind()) => {
            if error.kind() == ErrorKind::PermissionDenied && said.is_new(shown) {
                tracing::warn!(folder = shown, "it is left out, since this server may not read it: {error}");
            }
            return Ok(names);
        }
        listed => listed.map_err(|error| unreadable(shown, &error, said))?,
    };
    for entry in listed {
        let entry = entry.map_err(|error| unreadable(shown, &error, said))?;
        match entry.file_name().into_string() {
            Ok(name) if is_plain(&name) => names.push(name),
            _ if said.is_new(shown) => {
                tracing::warn!(folder = shown, "a file whose name is not UTF-8 cannot be shown to plugins");
            }
            _ => {}
        }
        if names.len() > MAX_NAMES {
            let message = format!("`{shown}` holds more than {MAX_NAMES} names; split it");
            return Err(CapabilityError::Unavailable(message));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether a folder that fails so is as one that is not there. One that may be there again is not: what was known of it would
/// be forgotten.
fn is_left_out(why: ErrorKind) -> bool {
    matches!(why, ErrorKind::PermissionDenied | ErrorKind::NotFound)
}

fn entry(path: String, about: &Metadata) -> DocumentEntry {
    let modified = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    DocumentEntry { path, size_bytes: about.len(), modified_unix_ms: modified.map_or(0, |d| d.as_millis() as u64) }
}

fn not_there(path: &str) -> CapabilityError {
    CapabilityError::Invalid(format!("no document `{}`", path.escape_debug()))
}

/// The guest learns that a document is not there or cannot be read, never why: host paths stay here.
fn unreadable(path: &str, error: &std::io::Error, said: &Said) -> CapabilityError {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidInput | ErrorKind::InvalidFilename => {
            not_there(path)
        }
        kind => {
            if said.is_new(path) {
                tracing::warn!(path, "a document cannot be read: {error}");
            }
            CapabilityError::Unavailable(format!("`{}` cannot be read: {kind}", path.escape_debug()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(folder: &Path) -> Mounts {
        Mounts::new(BTreeMap::from([("docs".to_owned(), folder.canonicalize().unwrap())]))
    }

    fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for path in ["b.txt", "a/z.txt", "a/b/c.txt", "a-b.txt"] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "0123456789").unwrap();
        }
        folder
    }

    fn paths(page: Vec<DocumentEntry>) -> Vec<String> {
        page.into_iter().map(|entry| entry.path).collect()
    }

    #[test]
    fn pages_of_any_size_give_the_same_list_in_order() {
        let folder = tree();
        let mounts = mounts(folder.path());
        let all = paths(mounts.list_now(None, 100).unwrap());
        assert_eq!(all, ["docs/a/b/c.txt", "docs/a/z.txt", "docs/a-b.txt", "docs/b.txt"]);
        for limit in 1..=5 {
            let mut paged: Vec<String> = Vec::new();
            loop {
                let page = paths(mounts.list_now(paged.last().map(String::as_str), limit).unwrap());
                if page.is_empty() {
                    break;
                }
                paged.extend(page);
            }
            assert_eq!(paged, all, "limit {limit}");
        }
    }

    #[test]
    fn a_read_is_cut_at_the_documents_end() {
        let folder = tree();
        let mounts = mounts(folder.path());
        assert_eq!(mounts.read_now("docs/b.txt", 8, 100).unwrap(), b"89");
        assert_eq!(mounts.read_now("docs/b.txt", 2, 3).unwrap(), b"234");
        assert_eq!(mounts.read_now("docs/b.txt", 99, 3).unwrap(), b"");
    }

    #[test]
    fn no_path_leaves_its_mount() {
        let folder = tree();
        let mounts = mounts(folder.path());
        for path in [
            "",
            "/",
            "docs",
            "docs/",
            "docs//b.txt",
            "docs/../docs/b.txt",
            "docs/a/../b.txt",
            "docs/./b.txt",
            "../etc/passwd",
            "/etc/passwd",
            "etc/passwd",
            "docs/a\\z.txt",
            "docs/b.txt/",
            "docs/b.txt/x",
            "docs/b.txt\0",
            "docs/a",
            "other/b.txt",
            "docs/..",
            "docs/a/b/../../../../etc/passwd",
            "docs/%2e%2e/x",
            "docs/\u{ff0e}\u{ff0e}/x",
        ] {
            let refused = mounts.read_now(path, 0, 10);
            assert!(matches!(refused, Err(CapabilityError::Invalid(_))), "{path:?}: {refused:?}");
        }
    }

    #[test]
    fn a_folder_below_that_cannot_be_listed_keeps_nobody_from_the_others() {
        let (folder, said) = (tree(), Said::default());
        let gone = folder.path().join("gone");
        assert_eq!(names(&gone, "docs/gone", true, &said).unwrap(), [""; 0], "it has vanished");
        assert!(names(&gone, "docs", false, &said).is_err(), "the mount itself");
        assert!(is_left_out(ErrorKind::PermissionDenied) && !is_left_out(ErrorKind::TimedOut));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_cannot_be_read_or_shown_is_said_once() {
        use std::os::unix::ffi::OsStrExt;
        // A file that is there, and whose first bytes nobody may read.
        let own = mounts(Path::new("/proc/self"));
        for _ in 0..2 {
            let failed = own.read_now("docs/mem", 0, 1);
            assert!(matches!(failed, Err(CapabilityError::Unavailable(_))), "{failed:?}");
            assert!(!own.said.is_new("docs/mem"));
        }
        let folder = tree();
        fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
        let mounts = mounts(folder.path());
        assert_eq!(mounts.list_now(None, 100).unwrap().len(), 4);
        assert!(!mounts.said.is_new("docs"));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_neither_listed_nor_opened() {
        let (outside, folder) = (tree(), tree());
        std::os::unix::fs::symlink(outside.path().join("b.txt"), folder.path().join("file-link")).unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.path().join("folder-link")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("b.txt"), folder.path().join("inner-link")).unwrap();
        let mounts = mounts(folder.path());
        assert_eq!(mounts.list_now(None, 100).unwrap().len(), 4);
        for path in ["docs/file-link", "docs/folder-link/b.txt", "docs/inner-link"] {
            assert!(matches!(mounts.read_now(path, 0, 10), Err(CapabilityError::Invalid(_))), "{path}");
        }
    }

    /// As it may be for the moment of opening.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_was_opened_by_a_folder_that_is_a_link_lies_elsewhere() {
        let (outside, folder) = (tree(), tree());
        let [outside, folder] = [outside.path(), folder.path()].map(|path| path.canonicalize().unwrap());
        let plain = File::open(folder.join("a/z.txt")).unwrap();
        assert_eq!(place_of(&plain).unwrap(), folder.join("a/z.txt"));
        fs::rename(folder.join("a"), folder.join("aside")).unwrap();
        std::os::unix::fs::symlink(outside.join("a"), folder.join("a")).unwrap();
        let linked = File::open(folder.join("a/z.txt")).unwrap();
        assert_eq!(place_of(&linked).unwrap(), outside.join("a/z.txt"));
    }

    #[tokio::test]
    async fn reads_that_hang_take_no_more_threads_however_many_calls_give_up() {
        use futures_util::FutureExt;
        let folder = tree();
        let mounts = Arc::new(mounts(folder.path()));
        let (let_go, gate) = std::sync::mpsc::sync_channel::<()>(1);
        let gate = Arc::new(std::sync::Mutex::new(gate));
        for _ in 0..MAX_READS {
            let gate = gate.clone();
            let hanging = move || gate.lock().unwrap().recv().map_err(|_| not_there("gone"));
            assert!(mounts.blocking(hanging).now_or_never().is_none(), "its call gives up");
        }
        let read = || mounts.clone().read("docs/b.txt".into(), 0, 4);
        let refused = read().await.unwrap_err();
        assert!(matches!(&refused, CapabilityError::Unavailable(why) if why.contains("8 reads")), "{refused}");
        let_go.send(()).unwrap();
        assert_eq!(read().await.unwrap(), b"0123", "one has ended");
        drop(let_go);
    }

    #[test]
    fn a_mount_that_is_no_folder_is_refused_by_name() {
        let folder = tree();
        let open = |name: &str, path: PathBuf| match Folders.open(&BTreeMap::from([(name.to_owned(), path)])) {
            Ok(_) => panic!("opened"),
            Err(message) => message,
        };
        assert!(open("docs", folder.path().join("b.txt")).contains("is not a folder"));
        assert!(open("docs", folder.path().join("missing")).contains("mount `docs`"));
        assert!(open("../docs", folder.path().into()).contains("no plain name"));
    }
}
