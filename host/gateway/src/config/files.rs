//! The files that a config is made of, as they looked just before they were read: what looks otherwise later has changed,
//! and nothing that changes meanwhile is missed.

use super::Config;
use crate::artifact::layout::Layout;
use crate::artifact::lock::Lock;
use anyhow::bail;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// How files look, by path; nothing of a file that is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(BTreeMap<PathBuf, Option<Look>>);

/// What changes with a file. Copies and archives bring their size and time with them, and may be put in place of the file or
/// be written into it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Look {
    bytes: u64,
    /// When its content changed, as whoever wrote it says: seconds and nanoseconds.
    modified: (i64, i64),
    /// Another one has another.
    inode: u64,
    /// When something of it changed, as the system says.
    changed: (i64, i64),
    /// Whether it is no pipe, folder or device.
    is_regular: bool,
}

impl Look {
    fn of(about: &Metadata) -> Self {
        let (modified, changed) = ((about.mtime(), about.mtime_nsec()), (about.ctime(), about.ctime_nsec()));
        Self { bytes: about.len(), modified, inode: about.ino(), changed, is_regular: about.is_file() }
    }
}

impl Seen {
    /// Looks at some files.
    pub(crate) fn of(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let look = |path: PathBuf| {
            let look = std::fs::metadata(&path).ok().as_ref().map(Look::of);
            (path, look)
        };
        Self(files.into_iter().map(look).collect())
    }

    /// Refuses what is there and is read for as long as somebody else wants, be it for ever.
    pub(crate) fn check_regular(&self) -> anyhow::Result<()> {
        match self.0.iter().find(|(_, look)| look.as_ref().is_some_and(|look| !look.is_regular)) {
            Some((path, _)) => bail!("{} is a pipe, a folder or a device; name a regular file", path.display()),
            None => Ok(()),
        }
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
    let plugins = stages.filter_map(|stage| match (&stage.file, &stage.source) {
        (Some(file), _) if file.is_dir() => Some(Layout::index_file(file)),
        (Some(file), _) => Some(file.clone()),
        (None, Some(_)) => Some(Layout::index_file(&Lock::store(config.source.as_deref()?))),
        (None, None) => None,
    });
    let tls = config.server.tls.iter().flat_map(|tls| [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()]);
    let certificates = tls.flatten().cloned();
    config.source.iter().flat_map(|source| [source.clone(), Lock::file(source)]).chain(plugins).chain(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::time::{Duration, SystemTime};

    /// Where it comes after the config that names it, that is a change.
    #[test]
    fn what_is_pulled_for_a_config_belongs_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tidegate.toml");
        let has = |stage: &str| {
            std::fs::write(&file, format!("[[pipeline.stage]]\nplugin = \"pii-guard\"\n{stage}")).unwrap();
            let seen = Config::load(&file).unwrap().files;
            seen.0.contains_key(&folder.path().join("tidegate-plugins/index.json"))
        };
        assert!(has("source = \"oci://localhost:1/mine:1\"\n"));
        assert!(!has(""));
    }

    #[test]
    fn a_file_of_the_same_size_and_time_is_seen_to_be_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let write = |file: File, text: &str| {
            std::io::Write::write_all(&mut &file, text.as_bytes()).unwrap();
            file.set_modified(time).unwrap();
        };
        write(File::create(path("a")).unwrap(), "heron");
        write(File::create(path("b")).unwrap(), "otter");
        let seen = Seen::of([path("a")]);
        assert_eq!(seen, seen.again());
        std::fs::rename(path("b"), path("a")).unwrap();
        let replaced = seen.again();
        assert_ne!(replaced, seen);
        // The system's clock of files is coarse.
        std::thread::sleep(Duration::from_millis(50));
        write(OpenOptions::new().write(true).open(path("a")).unwrap(), "heron");
        assert_ne!(replaced.again(), replaced, "written into the same file");
    }
}
