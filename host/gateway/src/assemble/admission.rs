//! Which bytes a stage may run: those that its config names, that the lock pins, and that a trusted key has signed.
//! Everything that loads a configured plugin asks here: the start, `check`, a reload, and `tidegate plugin lock`.

use crate::artifact::digest::Digest;
use crate::artifact::key::PublicKey;
use crate::artifact::layout::Layout;
use crate::artifact::lock::{Entry, Lock};
use crate::artifact::reference::Reference;
use crate::artifact::signature;
use crate::artifact::{Artifact, MAX_COMPONENT_BYTES};
use crate::config::{Config, StageConfig};
use anyhow::{Context, bail};
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// The operator's conditions.
pub(crate) struct Admission {
    trusted: Vec<PublicKey>,
    lock: Option<Lock>,
    /// The config's file, beside which lock and pulled plugins are.
    config: Option<PathBuf>,
}

/// What a file or folder holds: a bare component, or one with its manifest and signatures.
pub(crate) enum Found {
    Bare(Vec<u8>),
    Packed(Box<Artifact>),
}

impl Found {
    /// Reads a component's file or a packed plugin's folder.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        if path.is_dir() {
            return Ok(Self::Packed(Box::new(Layout::open(path)?.read(None, None)?)));
        }
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAX_COMPONENT_BYTES + 1).read_to_end(&mut bytes));
        read.with_context(|| format!("cannot read the plugin {}", path.display()))?;
        // A model's file, say, of which no more is read.
        if bytes.len() as u64 > MAX_COMPONENT_BYTES {
            bail!("{} has more than the {MAX_COMPONENT_BYTES} bytes that a plugin may have", path.display());
        }
        Ok(Self::Bare(bytes))
    }

    pub(crate) fn into_component(self) -> Vec<u8> {
        match self {
            Self::Bare(component) => component,
            Self::Packed(artifact) => artifact.component,
        }
    }

    pub(crate) fn component(&self) -> &[u8] {
        match self {
            Self::Bare(component) => component,
            Self::Packed(artifact) => &artifact.component,
        }
    }

    pub(crate) fn artifact(&self) -> Option<&Artifact> {
        match self {
            Self::Bare(_) => None,
            Self::Packed(artifact) => Some(artifact),
        }
    }

    /// Refuses what no trusted key has signed, where keys are named.
    pub(crate) fn check_trusted(&self, trusted: &[PublicKey]) -> anyhow::Result<()> {
        match self {
            _ if trusted.is_empty() => Ok(()),
            Self::Packed(artifact) => signature::check_trusted(&artifact.signatures, &artifact.digest(), trusted),
            Self::Bare(_) => bail!(
                "it is a bare component, which has no signature, and plugins.trusted_keys wants one; pack and sign it \
                 (`tidegate plugin pack --sign KEY`), and name its folder by `file`"
            ),
        }
    }
}

impl Admission {
    pub(crate) fn new(config: &Config) -> anyhow::Result<Self> {
        let lock = config.source.as_deref().map(Lock::load).transpose()?.flatten();
        if config.plugins.locked && lock.is_none() && names_others(config) {
            let Some(file) = &config.source else {
                bail!("plugins.locked needs a config file, beside which the lock is")
            };
            let (lock, remedy) = (Lock::file(file), remedy(file, ""));
            bail!("plugins.locked is set, and there is no {}; `{remedy}` makes it", lock.display());
        }
        Ok(Self { trusted: config.plugins.trusted_keys.clone(), lock, config: config.source.clone() })
    }

    /// A line about plugins of a config that nothing pins.
    pub(crate) fn fact(&self, config: &Config) -> Option<String> {
        let file = self.config.as_deref().filter(|_| self.lock.is_none() && names_others(config))?;
        let (lock, remedy) = (Lock::file(file), remedy(file, ""));
        Some(format!("plugins   ARE NOT PINNED: there is no {}; `{remedy}` makes it", lock.display()))
    }

    /// The component of a stage that names one; `None` where a shipped plugin is meant.
    pub(crate) fn component(&self, stage: &StageConfig) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(source) = source(stage) else { return Ok(None) };
        let found = self.find(stage, &source)?;
        let named = || format!("`{}` from {source}", stage.plugin);
        self.check_locked(&source, &found).with_context(named)?;
        found.check_trusted(&self.trusted).with_context(|| match (&stage.file, &self.config) {
            (None, Some(config)) => format!("{}; `{}` fetches its signatures anew", named(), remedy(config, "")),
            _ => named(),
        })?;
        Ok(Some(match found {
            Found::Bare(component) => component,
            Found::Packed(artifact) => artifact.component,
        }))
    }

    fn find(&self, stage: &StageConfig, source: &str) -> anyhow::Result<Found> {
        if let Some(file) = &stage.file {
            return Found::read(file);
        }
        let config = self.config.as_deref().context("`source` needs a config file, beside which its lock is")?;
        let artifact = self.entry(source)?.and_then(|entry| entry.artifact.as_ref());
        let Some(digest) = artifact else {
            bail!("`{source}` is not locked, so that nobody knows what it is; run `{}`", remedy(config, ""))
        };
        let store = Layout::open(&Lock::store(config)).and_then(|store| store.read(None, Some(digest)));
        let fetch = || format!("what `{source}` is locked to is not here; `{}` fetches it", remedy(config, ""));
        Ok(Found::Packed(Box::new(store.with_context(fetch)?)))
    }

    /// The source's entry, where there is a lock; then every source has one.
    fn entry(&self, source: &str) -> anyhow::Result<Option<&Entry>> {
        let (Some(lock), Some(config)) = (&self.lock, &self.config) else { return Ok(None) };
        match lock.entry(source) {
            Some(entry) => Ok(Some(entry)),
            None => bail!(
                "`{source}` is not in {}; look at it (`tidegate plugin inspect`), then run `{}`",
                Lock::file(config).display(),
                remedy(config, "")
            ),
        }
    }

    fn check_locked(&self, source: &str, found: &Found) -> anyhow::Result<()> {
        let Some(entry) = self.entry(source)? else { return Ok(()) };
        let config = self.config.as_deref().unwrap_or(Path::new(""));
        let pairs = [
            ("component", Some(Digest::of(found.component())), Some(entry.component.clone())),
            ("artifact", found.artifact().map(Artifact::digest), entry.artifact.clone()),
        ];
        for (what, found, locked) in pairs {
            if found != locked {
                let shown = |digest: Option<Digest>| digest.map_or("none".into(), |digest| digest.to_string());
                bail!(
                    "its {what} has the digest {}, and {} pins {}; if the change is wanted, run `{}`",
                    shown(found),
                    Lock::file(config).display(),
                    shown(locked),
                    remedy(config, " --upgrade")
                );
            }
        }
        Ok(())
    }
}

/// What the lock calls a stage's plugin: its reference in its one form, `oci://...`, or its path as the config writes it, in
/// whatever way the config itself is named. No path begins with `oci://`: of several slashes one is left.
pub(crate) fn source(stage: &StageConfig) -> Option<String> {
    if let Some(file) = &stage.file {
        let written = stage.written.as_ref().unwrap_or(file);
        let parts = written.components().filter(|part| *part != Component::CurDir);
        return Some(parts.collect::<PathBuf>().display().to_string());
    }
    let text = stage.source.as_ref()?;
    Some(Reference::parse(text).map_or_else(|_| text.clone(), |reference| reference.to_string()))
}

/// Whether stages name plugins that the program does not carry.
fn names_others(config: &Config) -> bool {
    config.pipeline.iter().flat_map(|pipeline| &pipeline.stage).any(|stage| source(stage).is_some())
}

fn remedy(config: &Path, option: &str) -> String {
    format!("tidegate plugin lock{option} {}", config.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(keys: &str) -> StageConfig {
        toml::from_str(&format!("plugin = \"mine\"\n{keys}")).unwrap()
    }

    #[test]
    fn a_source_has_one_form_however_it_is_written() {
        let check = |keys: &str, expected: &str| assert_eq!(source(&stage(keys)).unwrap(), expected, "{keys}");
        check("file = \"dist/mine.wasm\"", "dist/mine.wasm");
        check("file = \"./dist/./mine.wasm\"", "dist/mine.wasm");
        check("file = \"../mine.oci\"", "../mine.oci");
        check("file = \"oci://mine.oci\"", "oci:/mine.oci");
        check("source = \"oci://ghcr.io/you/hush:1\"", "oci://ghcr.io/you/hush:1");
        check("source = \"ghcr.io/you/hush:1\"", "oci://ghcr.io/you/hush:1");
        let digest = Digest::of(b"");
        check(&format!("source = \"ghcr.io/you/hush@{digest}\""), &format!("oci://ghcr.io/you/hush@{digest}"));
        assert_eq!(source(&stage("")), None);
    }

    #[test]
    fn of_a_file_that_is_no_component_no_more_is_read_than_one_has() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 40).unwrap();
        let Err(refused) = Found::read(file.path()) else { panic!("a terabyte") };
        assert!(refused.to_string().contains("more than the 67108864 bytes"), "{refused}");
    }

    #[test]
    fn a_file_is_known_by_what_the_config_says_and_not_by_where_that_is() {
        let resolved = StageConfig {
            file: Some("/etc/tidegate/./mine.wasm".into()),
            written: Some("./mine.wasm".into()),
            ..stage("")
        };
        assert_eq!(source(&resolved).unwrap(), "mine.wasm");
    }
}
