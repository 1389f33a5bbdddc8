//! `documents`: read-only documents that the operator mounted. This file bounds what a guest may ask; a
//! [`DocumentStore`] opens what is granted. [`super::Folders`] is the built-in one.

use super::{BoxFuture, CapabilityError};
use crate::bindings::tidegate::plugin::documents::{Entry, Error, Host};
use crate::state::HostState;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tidegate_types::TenantId;

/// Bytes of one read, and of one result's path.
const MAX_READ: u32 = 1 << 20;
const MAX_LIST: u32 = 1000;
const MAX_PATH_BYTES: usize = 4096;

/// One document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentEntry {
    /// `mount/folder/file`
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
    /// When it was last changed; 0 where that is not known.
    pub modified_unix_ms: u64,
}

/// Opens what the `documents` grant names. Called once per plugin, when it is loaded; may block, and where it does so for longer
/// than the load waits, that is refused, and what has blocked goes on for as long as it takes.
pub trait DocumentStore: Send + Sync {
    /// The mounts of the plugin of that name, which may have been loaded before; an error is for the operator.
    fn open(&self, plugin: &str, mounts: &BTreeMap<String, PathBuf>) -> Result<Arc<dyn Documents>, String>;
}

/// The documents that one plugin may read, for one tenant or another, whose share of such reads each is. Paths are as [`DocumentEntry::path`] says, and come from a guest: an
/// implementation must not leave its mounts, whatever they hold.
pub trait Documents: Send + Sync {
    /// At most `limit` documents behind `after`, sorted by the parts of their paths.
    fn list(
        self: Arc<Self>,
        tenant: TenantId,
        after: Option<String>,
        limit: u32,
    ) -> BoxFuture<'static, Result<Vec<DocumentEntry>, CapabilityError>>;

    /// At most `len` bytes from `offset`; fewer at the end of the document, none behind it.
    fn read(
        self: Arc<Self>,
        tenant: TenantId,
        path: String,
        offset: u64,
        len: u32,
    ) -> BoxFuture<'static, Result<Vec<u8>, CapabilityError>>;
}

impl Host for HostState {
    async fn list(&mut self, after: Option<String>, limit: u32) -> wasmtime::Result<Result<Vec<Entry>, Error>> {
        let listed = async {
            let documents = self.mounted("documents.list", after.as_deref())?;
            self.meter.waiting(documents.list(self.tenant.clone(), after, limit.min(MAX_LIST))).await
        };
        Ok(listed.await.map(|entries| entries.into_iter().map(Entry::from).collect()).map_err(Into::into))
    }

    async fn read(&mut self, path: String, offset: u64, len: u32) -> wasmtime::Result<Result<Vec<u8>, Error>> {
        let bytes = async {
            let documents = self.mounted("documents.read", Some(&path))?;
            self.meter.waiting(documents.read(self.tenant.clone(), path, offset, len.min(MAX_READ))).await
        };
        Ok(bytes.await.map_err(Into::into))
    }
}

impl HostState {
    fn mounted(&mut self, function: &'static str, path: Option<&str>) -> Result<Arc<dyn Documents>, CapabilityError> {
        self.allow("documents", function)?;
        let granted = self.blueprint.documents.clone();
        let documents = granted.ok_or_else(|| CapabilityError::Denied("`documents` is not granted here".into()))?;
        match path.filter(|path| path.len() > MAX_PATH_BYTES) {
            Some(path) => {
                let message = format!("a path of {} bytes; at most {MAX_PATH_BYTES}", path.len());
                Err(CapabilityError::Invalid(message))
            }
            None => Ok(documents),
        }
    }
}

impl From<DocumentEntry> for Entry {
    fn from(entry: DocumentEntry) -> Self {
        Self { path: entry.path, size_bytes: entry.size_bytes, modified_unix_ms: entry.modified_unix_ms }
    }
}
