//! Documents in folders of this machine. A path is a mount's name and plain names below it. Invariant: what is listed and
//! read lies under the mounted folder after every symbolic link is resolved, and no link is followed inside it: links are
//! neither listed nor opened, so that who may write to the folder cannot show a plugin other files (`opened.rs`).
//!
//! A folder may hang, as one of another machine does that is away, and nothing ends a read in it. So a plugin has a few at
//! once, each until it has ended, be its call gone long before, or the plugin loaded anew: it takes no more threads than that
//! from others (`reads.rs`).

mod opened;
mod reads;
mod said;

use super::{BoxFuture, CapabilityError, DocumentEntry, DocumentStore, Documents};
use crate::per_key::PerKey;
use opened::{About, Folder};
use reads::Reads;
use said::{Said, Wrong};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
        let (mount, below) = path.split_once('/').ok_or_else(|| not_there(path))?;
        let root = self.roots.get(mount).ok_or_else(|| not_there(path))?;
        let names: Vec<&str> = below.split('/').collect();
        if !names.iter().all(|name| is_plain(name)) {
            return Err(CapabilityError::Invalid(format!("`{}` is no path of a document", path.escape_debug())));
        }
        open_below(root, &names).map_err(|error| unreadable(path, &error, Wrong::Read, &self.said))
    }

    fn list_now(&self, after: Option<&str>, limit: usize) -> Result<Vec<DocumentEntry>, CapabilityError> {
        let after: Vec<&str> = after.map_or_else(Vec::new, |path| path.split('/').collect());
        let mut page = Page { entries: Vec::new(), limit, said: &self.said };
        for (name, root) in &self.roots {
            if let Some(below) = rest_of(&after, name) {
                walk(Folder::root(root), name, below, MAX_DEPTH, &mut page)?;
            }
        }
        Ok(page.entries)
    }
}

/// The file of these names, each in the folder before it.
fn open_below(root: &Path, names: &[&str]) -> std::io::Result<File> {
    let (name, folders) = names.split_last().ok_or(ErrorKind::NotFound)?;
    let folder = folders.iter().try_fold(Folder::root(root)?, |folder, name| folder.folder(name))?;
    folder.file(name)
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
fn walk(
    folder: std::io::Result<Folder>,
    shown: &str,
    after: &[&str],
    depth: usize,
    page: &mut Page<'_>,
) -> Result<(), CapabilityError> {
    let listed = folder.and_then(|folder| Ok((folder.names()?, folder)));
    let Some((names, folder)) = listed_of(listed, shown, depth < MAX_DEPTH, page.said)? else { return Ok(()) };
    for name in in_order(names, shown, page.said)? {
        if page.entries.len() >= page.limit {
            break;
        }
        let Some(below) = rest_of(after, &name) else { continue };
        let skip_itself = after.first().is_some_and(|first| *first == name) && below.is_empty();
        let shown = format!("{shown}/{name}");
        let Some(about) = about(folder.about(&name), &shown, page.said)? else { continue };
        if about.kind.is_dir() && depth > 0 {
            walk(folder.folder(&name), &shown, below, depth - 1, page)?;
        } else if about.kind.is_dir() && page.said.is_new(&shown, Wrong::Depth) {
            tracing::warn!(folder = shown, "it is left out, since it lies more than {MAX_DEPTH} folders deep");
        } else if about.kind.is_file() && !skip_itself {
            page.entries.push(entry(shown, &about));
        }
    }
    Ok(())
}

/// What a name is; `None` for one that has vanished meanwhile, or of which this server may not know. Any other failure ends
/// the listing: a document that is merely away for a moment would be forgotten by whoever keeps what it has listed.
fn about(stat: std::io::Result<About>, shown: &str, said: &Said) -> Result<Option<About>, CapabilityError> {
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

/// What was opened and listed of a folder. One below a mount that this server may not read, such as `lost+found` of a whole
/// disk, or that has vanished meanwhile, keeps nobody from the others: `None`.
fn listed_of<T>(
    listed: std::io::Result<T>,
    shown: &str,
    is_below: bool,
    said: &Said,
) -> Result<Option<T>, CapabilityError> {
    match listed {
        Err(error) if is_below && is_left_out(error.kind()) => {
            say_left_out(shown, &error, Wrong::List, said);
            Ok(None)
        }
        listed => listed.map(Some).map_err(|error| unreadable(shown, &error, Wrong::List, said)),
    }
}

/// The names in a folder that can be shown.
fn in_order(
    listed: impl Iterator<Item = std::io::Result<OsString>>,
    shown: &str,
    said: &Said,
) -> Result<Vec<String>, CapabilityError> {
    let mut names = Vec::new();
    let mut are_shown = true;
    for entry in listed {
        let name = entry.map_err(|error| unreadable(shown, &error, Wrong::List, said))?;
        match name.into_string() {
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

fn entry(path: String, about: &About) -> DocumentEntry {
    DocumentEntry { path, size_bytes: about.size_bytes, modified_unix_ms: about.modified_unix_ms }
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
