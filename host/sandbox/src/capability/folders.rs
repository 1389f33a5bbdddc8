//! Documents in folders of this machine. A path is a mount's name and plain names below it. Invariant: what is read
//! lies under the mounted folder after every symbolic link is resolved, and no link is followed inside it: links are
//! neither listed nor opened, so that who may write to the folder cannot show a plugin other files.
//!
//! A folder may hang, as one of another machine does that is away, and nothing ends a read in it. So a plugin has a few at
//! once, each until it has ended, be its call gone long before, or the plugin loaded anew: it takes no more threads than that
//! from others (`reads.rs`).

mod reads;
mod said;

use super::{BoxFuture, CapabilityError, DocumentEntry, DocumentStore, Documents};
use crate::per_key::PerKey;
use reads::Reads;
use said::{Said, Wrong};
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use tidegate_types::TenantId;

/// Folders within folders that are looked into.
const MAX_DEPTH: usize = 32;
/// Names in one folder; a larger one is refused rather than shown in part.
const MAX_NAMES: usize = 100_000;

/// Opens folders.
pub struct Folders {
    /// Of each plugin in its folders: one that is mounted elsewhere is not kept waiting by where it was.
    reads: PerKey<(String, BTreeMap<String, PathBuf>), Reads>,
}

impl Default for Folders {
    fn default() -> Self {
        Self { reads: PerKey::new(Reads::default) }
    }
}

impl DocumentStore for Folders {
    fn open(&self, plugin: &str, mounts: &BTreeMap<String, PathBuf>) -> Result<Arc<dyn Documents>, String> {
        Ok(Arc::new(self.mounts(plugin, mounts)?))
    }
}

impl Folders {
    fn mounts(&self, plugin: &str, mounts: &BTreeMap<String, PathBuf>) -> Result<Mounts, String> {
        let roots = mounts.iter().map(|(name, folder)| Ok((mount_name(name)?, root(name, folder)?)));
        let roots = roots.collect::<Result<_, String>>()?;
        let reads = self.reads.of((plugin.to_owned(), mounts.clone()));
        Ok(Mounts { roots, reads, said: Said::default() })
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
    reads: Arc<Reads>,
    said: Said,
}

impl Documents for Mounts {
    fn list(
        self: Arc<Self>,
        tenant: TenantId,
        after: Option<String>,
        limit: u32,
    ) -> BoxFuture<'static, Result<Vec<DocumentEntry>, CapabilityError>> {
        Box::pin(async move {
            let mounts = Arc::clone(&self);
            self.reads.run(tenant, move || mounts.list_now(after.as_deref(), limit as usize)).await
        })
    }

    fn read(
        self: Arc<Self>,
        tenant: TenantId,
        path: String,
        offset: u64,
        len: u32,
    ) -> BoxFuture<'static, Result<Vec<u8>, CapabilityError>> {
        Box::pin(async move {
            let mounts = Arc::clone(&self);
            self.reads.run(tenant, move || mounts.read_now(&path, offset, len)).await
        })
    }
}

impl Mounts {
    fn read_now(&self, path: &str, offset: u64, len: u32) -> Result<Vec<u8>, CapabilityError> {
        let mut file = self.open_file(path)?;
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(offset))
            .and_then(|_| file.take(len.into()).read_to_end(&mut bytes))
            .map_err(|error| unreadable(path, &error, Wrong::Read, &self.said))?;
        self.said.is_over(path, Wrong::Read);
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
        open_unlinked(&full).map_err(|error| unreadable(path, &error, Wrong::Read, &self.said))
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
        let stat = fs::symlink_metadata(&path);
        let Some(about) = about(stat, &shown, page.said)? else { continue };
        if about.is_dir() && depth > 0 {
            walk(&path, &shown, below, depth - 1, page)?;
        } else if about.is_dir() && page.said.is_new(&shown, Wrong::Depth) {
            tracing::warn!(folder = shown, "it is left out, since it lies more than {MAX_DEPTH} folders deep");
        } else if about.is_file() && !skip_itself {
            page.entries.push(entry(shown, &about));
        }
    }
    Ok(())
}

/// What a name is; `None` for one that has vanished meanwhile, or of which this server may not know. Any other failure ends
/// the listing: a document that is merely away for a moment would be forgotten by whoever keeps what it has listed.
fn about(stat: std::io::Result<Metadata>, shown: &str, said: &Said) -> Result<Option<Metadata>, CapabilityError> {
    match stat {
        Ok(about) => {
            said.is_over(shown, Wrong::About);
            Ok(Some(about))
        }
        Err(error) if is_left_out(error.kind()) => {
            say_left_out(shown, &error, Wrong::About, said);
            Ok(None)
        }
        Err(error) => Err(unreadable(shown, &error, Wrong::About, said)),
    }
}

/// What is in a folder. One below a mount that this server may not read, such as `lost+found` of a whole disk, or that has
/// vanished meanwhile, keeps nobody from the others.
fn names(folder: &Path, shown: &str, is_below: bool, said: &Said) -> Result<Vec<String>, CapabilityError> {
    let mut names = Vec::new();
    let listed = match fs::read_dir(folder) {
        Err(error) if is_below && is_left_out(error.kind()) => {
            say_left_out(shown, &error, Wrong::List, said);
            return Ok(names);
        }
        listed => listed.map_err(|error| unreadable(shown, &error, Wrong::List, said))?,
    };
    let mut are_shown = true;
    for entry in listed {
        let entry = entry.map_err(|error| unreadable(shown, &error, Wrong::List, said))?;
        match entry.file_name().into_string() {
            Ok(name) if is_plain(&name) => names.push(name),
            _ => {
                are_shown = false;
                if said.is_new(shown, Wrong::Name) {
                    tracing::warn!(folder = shown, "a file whose name is not UTF-8 cannot be shown to plugins");
                }
            }
        }
        if names.len() > MAX_NAMES {
            let message = format!("`{shown}` holds more than {MAX_NAMES} names; split it");
            return Err(CapabilityError::Unavailable(message));
        }
    }
    said.is_over(shown, Wrong::List);
    if are_shown {
        said.is_over(shown, Wrong::Name);
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether what fails so is as what is not there: a file may have come in a folder's place, too. What may be there again is
/// not: what was known of it would be forgotten.
fn is_left_out(why: ErrorKind) -> bool {
    matches!(why, ErrorKind::PermissionDenied | ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// What has vanished is not worth a line.
fn say_left_out(shown: &str, why: &std::io::Error, wrong: Wrong, said: &Said) {
    if why.kind() == ErrorKind::PermissionDenied && said.is_new(shown, wrong) {
        tracing::warn!(path = shown, "it is left out, since this server may not read it: {why}");
    }
}

fn entry(path: String, about: &Metadata) -> DocumentEntry {
    let modified = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    DocumentEntry { path, size_bytes: about.len(), modified_unix_ms: modified.map_or(0, |d| d.as_millis() as u64) }
}

fn not_there(path: &str) -> CapabilityError {
    CapabilityError::Invalid(format!("no document `{}`", path.escape_debug()))
}

/// The guest learns that a document is not there or cannot be read, never why: host paths stay here.
fn unreadable(path: &str, error: &std::io::Error, wrong: Wrong, said: &Said) -> CapabilityError {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidInput | ErrorKind::InvalidFilename => {
            not_there(path)
        }
        kind => {
            if said.is_new(path, wrong) {
                tracing::warn!(path, "it cannot be read: {error}");
            }
            CapabilityError::Unavailable(format!("`{}` cannot be read: {kind}", path.escape_debug()))
        }
    }
}

#[cfg(test)]
mod tests;
