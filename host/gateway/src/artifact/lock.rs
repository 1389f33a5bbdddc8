//! `tidegate.lock`, beside `tidegate.toml`: what the config's plugins were when somebody looked at them. A component
//! whose digest is another one is refused, and an upgrade shows what the new one asks for that the old one did not
//! (`lock/difference.rs`).

mod difference;

pub use difference::{Asks, Difference};

use super::digest::Digest;
use super::key::PublicKey;
use super::reference::{OCI, PlaceName, Reference};
use super::whole::{self, Held};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const HEAD: &str =
    "# Written by `tidegate plugin lock`: what the plugins of the config beside it are. Keep it with the config.\n\n";
const VERSION: u32 = 1;

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    version: u32,
    /// One for each source.
    #[serde(default, rename = "plugin")]
    pub plugins: Vec<Entry>,
}

/// One plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Entry {
    /// Its name for itself.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What the config says: a path without its `.`, or a reference, written as `oci://...`.
    pub source: String,
    /// The `plugin` of each stage with that source: of one alone without a list. Older locks have the first alone, or none.
    #[serde(default, rename = "stage", skip_serializing_if = "Vec::is_empty", with = "names")]
    pub stage_names: Vec<String>,
    /// Digest of the component.
    pub component: Digest,
    /// Digest of the artifact that it came in; none for a bare component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Digest>,
    /// Whose signatures fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signed_by: Vec<PublicKey>,
    /// What it asked for.
    pub asks: Asks,
}

impl Entry {
    /// Whether it is from a registry; a path is never written so.
    pub fn is_pulled(&self) -> bool {
        self.source.starts_with(OCI)
    }
}

impl Lock {
    /// A lock of some plugins.
    pub fn new(mut plugins: Vec<Entry>) -> Self {
        plugins.sort_by(|a, b| a.source.cmp(&b.source));
        Self { version: VERSION, plugins }
    }

    /// Where the lock of a config is.
    pub fn file(config: &Path) -> PathBuf {
        config.with_extension("lock")
    }

    /// Where what was pulled for a config is.
    pub fn store(config: &Path) -> PathBuf {
        config.with_file_name("tidegate-plugins")
    }

    /// The lock of a config, where it has one.
    pub fn load(config: &Path) -> anyhow::Result<Option<Self>> {
        let file = Self::file(config);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
        };
        let lock: Self = toml::from_str(&text).with_context(|| format!("in {}", file.display()))?;
        if lock.version != VERSION {
            bail!("{} is of version {}; this program reads {VERSION}", file.display(), lock.version);
        }
        Ok(Some(lock))
    }

    /// Writes it beside the config.
    pub fn save(&self, config: &Path) -> anyhow::Result<PathBuf> {
        let file = Self::file(config);
        let text = format!("{HEAD}{}", toml::to_string(self)?);
        whole::write(&file, text.as_bytes())?;
        Ok(file)
    }

    /// Keeps others from writing it, until what this gives is dropped: what is compared with it and then written is compared
    /// with what is there. Waits for them, blocking.
    pub fn hold(config: &Path) -> anyhow::Result<Held> {
        let lock = Self::file(config);
        let name = lock.file_name().unwrap_or_default().to_string_lossy();
        Held::wait(&lock.with_file_name(format!(".{name}.held")))
    }

    /// The entry of a source.
    pub fn entry(&self, source: &str) -> Option<&Entry> {
        self.plugins.iter().find(|entry| entry.source == source)
    }

    /// Whose place an entry takes: of the plugins that its stages had before, wherever these are now. Where its source is a new
    /// one and none of those is gone, also of those that are gone and are of the same repository, or else of the same name for
    /// itself. Who moves to another tag or file upgrades. All of them where there are several: nobody knows which one it was,
    /// and it shall ask for no more than any. `now` is what is found.
    pub fn before(&self, new: &Entry, now: &Self) -> Vec<&Entry> {
        let is_gone = |old: &&Entry| now.entry(&old.source).is_none();
        let came = without(&new.stage_names, self.entry(&new.source));
        let has_lost_one = |old: &&Entry| {
            let left = without(&old.stage_names, now.entry(&old.source));
            old.source != new.source && left.iter().any(|name| came.contains(name))
        };
        let mut before: Vec<&Entry> = self.plugins.iter().filter(has_lost_one).collect();
        if self.entry(&new.source).is_some() || before.iter().any(is_gone) {
            return before;
        }
        let same_place = |old: &&Entry| repository(old).is_some_and(|place| Some(place) == repository(new));
        let same_name = |old: &&Entry| old.name == new.name;
        let gone = || self.plugins.iter().filter(is_gone);
        let is_moved = gone().any(|old| same_place(&old));
        before.extend(gone().filter(|old| if is_moved { same_place(old) } else { same_name(old) }));
        before
    }
}

/// The names that an entry does not have, each as often as it has it less.
fn without<'a>(names: &'a [String], entry: Option<&Entry>) -> Vec<&'a String> {
    let mut others: Vec<&String> = entry.iter().flat_map(|entry| &entry.stage_names).collect();
    let mut left: Vec<&String> = names.iter().collect();
    left.retain(|name| {
        let at = others.iter().position(|other| other == name);
        at.map(|at| others.swap_remove(at)).is_none()
    });
    left
}

/// The registry and repository that an entry is from.
fn repository(entry: &Entry) -> Option<PlaceName> {
    let place = Reference::parse(&entry.source).ok()?.place;
    matches!(place, PlaceName::Registry { .. }).then_some(place)
}

/// Names as one, or as a list.
mod names {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Names {
        One(String),
        Several(Vec<String>),
    }

    pub(super) fn serialize<S: Serializer>(names: &[String], serializer: S) -> Result<S::Ok, S::Error> {
        match names {
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
        Ok(match Names::deserialize(deserializer)? {
            Names::One(one) => vec![one],
            Names::Several(several) => several,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn entry() -> Entry {
        let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Entry {
            name: "hush".into(),
            version: "0.1.0".into(),
            source: "dist/hush.wasm".into(),
            stage_names: vec!["quiet".into()],
            component: Digest::of(b"component"),
            artifact: Some(Digest::of(b"manifest")),
            signed_by: vec![PublicKey::parse(&format!("ed25519:{}", "ab".repeat(32))).unwrap()],
            asks: Asks {
                stages: set(&["stream-guard"]),
                capabilities: set(&["kv"]),
                mutates: true,
                deterministic: Some(false),
                holdback_bytes: Some(64),
            },
        }
    }

    #[test]
    fn a_lock_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("tidegate.toml");
        assert_eq!(Lock::load(&config).unwrap(), None);
        for (names, written) in [
            (vec![], None),
            (vec!["quiet".to_owned()], Some("stage = \"quiet\"\n")),
            (vec!["quiet".to_owned(), "still".to_owned()], Some("stage = [")),
        ] {
            let lock = Lock::new(vec![Entry { stage_names: names, ..entry() }]);
            let file = lock.save(&config).unwrap();
            assert_eq!(file, folder.path().join("tidegate.lock"));
            let text = std::fs::read_to_string(file).unwrap();
            assert_eq!(
                text.find("\nstage = ").map(|at| text[at + 1..].starts_with(written.unwrap())),
                written.map(|_| true)
            );
            assert_eq!(Lock::load(&config).unwrap(), Some(lock));
        }
        std::fs::write(folder.path().join("tidegate.lock"), "version = 2").unwrap();
        assert!(Lock::load(&config).unwrap_err().to_string().contains("of version 2"));
    }

    #[test]
    fn an_entry_of_another_source_is_known_by_its_stage_its_repository_or_its_name() {
        let of = |source: &str, stage: Option<&str>, name: &str| Entry {
            source: source.into(),
            stage_names: stage.into_iter().map(str::to_owned).collect(),
            name: name.into(),
            ..entry()
        };
        let lock = Lock::new(vec![
            of("a-1.wasm", Some("first"), "a"),
            of("oci://ghcr.io/you/b:1", None, "b"),
            of("c-1.wasm", None, "c"),
        ]);
        let check = |new: Entry, before: Option<&str>| {
            let found: Vec<_> =
                lock.before(&new, &Lock::new(vec![new.clone()])).into_iter().map(|old| old.source.as_str()).collect();
            assert_eq!(found, Vec::from_iter(before), "{new:?}");
        };
        check(of("a-2.wasm", Some("first"), "renamed"), Some("a-1.wasm"));
        check(of("oci://ghcr.io/you/b:2", Some("x"), "renamed"), Some("oci://ghcr.io/you/b:1"));
        check(of("oci://ghcr.io/you/other:1", Some("x"), "c"), Some("c-1.wasm"));
        check(of("d.wasm", None, "d"), None);
        check(of("d.wasm", Some("fourth"), "d"), None);
        // Of what is where it was, nothing has moved.
        let check = |new: Entry, found: &str, before: Option<&str>| {
            let now = Lock::new(vec![new.clone(), lock.entry(found).unwrap().clone()]);
            let before_it = lock.before(&new, &now).into_iter().map(|old| old.source.as_str());
            assert_eq!(before_it.collect::<Vec<_>>(), Vec::from_iter(before), "{new:?}");
        };
        check(of("a-2.wasm", Some("first"), "renamed"), "a-1.wasm", None);
        check(of("a-2.wasm", Some("first"), "c"), "a-1.wasm", Some("c-1.wasm"));
        check(of("oci://ghcr.io/you/b:2", None, "b"), "oci://ghcr.io/you/b:1", None);
        check(of("d.wasm", None, "c"), "c-1.wasm", None);
    }

    #[test]
    fn an_entry_is_known_by_each_of_its_stages_and_by_those_that_came_to_it() {
        let of = |source: &str, names: &[&str]| Entry {
            source: source.into(),
            stage_names: names.iter().map(|name| (*name).to_owned()).collect(),
            name: source.into(),
            ..entry()
        };
        let check = |old: &[Entry], now: &[Entry], expected: &[(&str, &[&str])]| {
            let (old, now) = (Lock::new(old.to_vec()), Lock::new(now.to_vec()));
            for (source, before) in expected {
                let found = old.before(now.entry(source).unwrap(), &now);
                assert_eq!(found.iter().map(|old| &*old.source).collect::<Vec<_>>(), *before, "{source}");
            }
        };
        let shared = [of("a", &["one", "two"])];
        check(&shared, &[of("b", &["one"]), of("c", &["two"])], &[("b", &["a"]), ("c", &["a"])]);
        // One stays where it was, and the other one comes from there.
        check(&shared, &[of("a", &["one"]), of("c", &["two"])], &[("a", &[]), ("c", &["a"])]);
        let apart = [of("a", &["one"]), of("b", &["two"])];
        check(&apart, &[of("a", &["one", "two"])], &[("a", &["b"])]);
        let alike = [of("a", &["g"]), of("b", &["g"])];
        check(&alike, &[of("a", &["g", "g"])], &[("a", &["b"])]);
        check(&alike, &[of("c", &["g"]), of("d", &["g"])], &[("c", &["a", "b"]), ("d", &["a", "b"])]);
        // What an older lock did not write down has come from nowhere.
        check(&apart, &[of("a", &["one", "three"]), of("b", &["two"])], &[("a", &[]), ("b", &[])]);
    }
}
