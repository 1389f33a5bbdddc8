//! The files that a config is made of, as they looked just before they were read: what looks otherwise later has changed,
//! and nothing that changes meanwhile is missed.

use super::Config;
use crate::artifact::layout::Layout;
use crate::artifact::lock::Lock;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

/// Sizes and times by path; nothing of a file that is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(BTreeMap<PathBuf, Option<(u64, SystemTime)>>);

impl Seen {
    /// Looks at some files.
    pub(crate) fn of(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let look = |path: PathBuf| {
            let about = std::fs::metadata(&path).ok();
            (path, about.and_then(|about| Some((about.len(), about.modified().ok()?))))
        };
        Self(files.into_iter().map(look).collect())
    }

    /// The same files as they look now.
    pub(crate) fn again(&self) -> Self {
        Self::of(self.0.keys().cloned())
    }

    /// The files of a config that was just read; what was looked at before counts as it looked then.
    pub(super) fn with(self, config: &Config) -> Self {
        let Self(mut files) = Self::of(named(config));
        files.extend(self.0);
        Self(files)
    }
}

/// All that is read with a config: itself, its lock, its plugins, its certificates.
fn named(config: &Config) -> impl Iterator<Item = PathBuf> {
    let stages = config.pipeline.iter().flat_map(|pipeline| &pipeline.stage);
    let plugins = stages.filter_map(|stage| stage.file.clone()).map(|file| match file.is_dir() {
        true => Layout::index_file(&file),
        false => file,
    });
    let tls = config.server.tls.iter().flat_map(|tls| [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()]);
    let certificates = tls.flatten().cloned();
    config.source.iter().flat_map(|source| [source.clone(), Lock::file(source)]).chain(plugins).chain(certificates)
}
