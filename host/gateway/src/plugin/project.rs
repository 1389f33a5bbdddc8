//! A plugin's project: a folder with `plugin.toml`, which says how it is built.

use crate::config::OWN_NAMES;
use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use tidegate_sandbox::is_plugin_name;

/// The file that makes a folder a project.
pub const FILE: &str = "plugin.toml";

/// How the commands that work in a project are told where it is.
pub(super) const BY_OPTION: &str = "`--project DIR` names one";

/// What a plugin is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Language {
    /// Rust, with the SDK.
    #[serde(rename = "rust")]
    Rust,
    /// C, with generated headers.
    #[serde(rename = "c")]
    C,
    /// JavaScript, on QuickJS.
    #[serde(rename = "js")]
    Js,
    /// Python, on CPython.
    #[serde(rename = "python")]
    Python,
}

impl Language {
    /// The folder of its templates.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::C => "c",
            Self::Js => "javascript",
            Self::Python => "python",
        }
    }

    /// How its source files end.
    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Rust => "rs",
            Self::C => "c",
            Self::Js => "js",
            Self::Python => "py",
        }
    }

    /// Whether a component may be built from a file of this name.
    fn is_source(self, name: &str) -> bool {
        let more: &[&str] = match self {
            Self::C => &["h"],
            Self::Js => &["mjs"],
            Self::Rust | Self::Python => &[],
        };
        let is_code =
            |extension: &str| extension == self.extension() || extension == "wit" || more.contains(&extension);
        name == FILE
            || (self == Self::Rust && matches!(name, "Cargo.toml" | "Cargo.lock"))
            || name.rsplit_once('.').is_some_and(|(_, extension)| is_code(extension))
    }

    /// Where in a project the plugin is written.
    pub(super) fn source(self) -> String {
        match self {
            Self::Rust => "src/lib.rs".into(),
            other => format!("plugin.{}", other.extension()),
        }
    }
}

/// `plugin.toml`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The plugin's name, and the component's.
    pub name: String,
    /// What it is written in.
    pub lang: Language,
}

/// An opened project.
#[derive(Clone, Debug)]
pub struct Project {
    /// Its folder.
    pub folder: PathBuf,
    /// What its file says.
    pub manifest: Manifest,
}

impl Project {
    /// Reads a project's file; where there is none, `hint` says how else the caller's command is told what it is about.
    pub fn open(folder: &Path, hint: &str) -> anyhow::Result<Self> {
        let path = folder.join(FILE);
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("cannot read {}; `tidegate plugin new` makes a project, {hint}", path.display())
        })?;
        let manifest: Manifest = toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        check_name(&manifest.name)?;
        let folder = folder.canonicalize().with_context(|| format!("cannot open {}", folder.display()))?;
        Ok(Self { folder, manifest })
    }

    /// The text of one of its files.
    pub(super) fn read(&self, file: &str) -> anyhow::Result<String> {
        let path = self.folder.join(file);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Where `plugin build` puts the component.
    pub fn component(&self) -> PathBuf {
        self.folder.join("dist").join(format!("{}.wasm", self.manifest.name))
    }

    /// The same, for those who need it there. Where a file that it is built from is newer, `out` is told.
    pub(super) fn built(&self, out: &mut dyn Write) -> anyhow::Result<PathBuf> {
        let component = self.component();
        ensure!(component.exists(), "{} is not there; `tidegate plugin build` makes it", component.display());
        if let Some(newer) = self.newer_than(&component) {
            let (newer, shown) = (newer.display(), component.display());
            writeln!(out, "{newer} is newer than {shown}: `tidegate plugin build` makes that anew")?;
        }
        Ok(component)
    }

    /// A file of the author's that has changed since the component was made; the plugin's own first.
    fn newer_than(&self, component: &Path) -> Option<PathBuf> {
        let changed = |path: &Path| path.metadata().and_then(|about| about.modified()).ok();
        let made = changed(component)?;
        let mut sources = vec![self.folder.join(self.manifest.lang.source())];
        add_sources(&self.folder, self.manifest.lang, &mut sources);
        sources.into_iter().find(|path| changed(path).is_some_and(|at| at > made))
    }
}

/// Folders of what is made or installed, and of tests, which are in no component.
const NOT_SOURCES: [&str; 5] = ["target", "dist", "node_modules", "__pycache__", "tests"];

/// Adds what a component in `lang` may be built from in `folder`, sorted, and in those below it, but for hidden ones, links,
/// and other projects.
fn add_sources(folder: &Path, lang: Language, sources: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().collect();
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sources.extend(lang.is_source(&name).then_some(path));
        } else if !name.starts_with('.') && !NOT_SOURCES.contains(&&*name) && !path.join(FILE).exists() {
            add_sources(&path, lang, sources);
        }
    }
}

/// A name is a plugin's, a folder's and a crate's.
pub(super) fn check_name(name: &str) -> anyhow::Result<()> {
    if !is_plugin_name(name) {
        bail!("the name `{name}` is not [a-z][a-z0-9-]* of at most 64 bytes");
    }
    if OWN_NAMES.contains(&name) {
        bail!("no stage may be named `{name}`, by which a server knows its own messages; give the plugin another name");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, create_dir_all, write};
    use std::time::{Duration, SystemTime};

    /// `changed` is the only file that is newer than the component.
    fn check(lang: Language, changed: &str, is_told: bool) {
        let folder = tempfile::tempdir().unwrap();
        let lay = |path: &str, seconds: u64| {
            let path = folder.path().join(path);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(&path, "").unwrap();
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            File::options().append(true).open(path).unwrap().set_modified(at).unwrap();
        };
        for (path, seconds) in [(FILE, 1), (&*lang.source(), 1), ("dist/mine.wasm", 2), (changed, 3)] {
            lay(path, seconds);
        }
        let project = Project { folder: folder.path().into(), manifest: Manifest { name: "mine".into(), lang } };
        let mut said = Vec::new();
        project.built(&mut said).unwrap();
        let said = String::from_utf8(said).unwrap();
        assert_eq!(said.contains(&format!("{changed} is newer than ")), is_told, "{lang:?} {changed}: {said}");
        assert_eq!(said.is_empty(), !is_told, "{lang:?} {changed}: {said}");
    }

    #[test]
    fn a_name_that_no_stage_may_have_is_no_plugins() {
        assert!(check_name("conversations").is_ok());
        for name in OWN_NAMES {
            let why = check_name(name).unwrap_err().to_string();
            assert!(why.contains(&format!("`{name}`")) && why.contains("another name"), "{why}");
        }
    }

    #[test]
    fn what_a_component_is_built_from_and_is_newer_is_told() {
        for (lang, changed) in [
            (Language::Rust, "src/lib.rs"),
            (Language::Rust, "src/a/b.rs"),
            (Language::Rust, "build.rs"),
            (Language::Rust, "Cargo.lock"),
            (Language::Rust, "vendor/sdk/Cargo.toml"),
            (Language::C, "more.h"),
            (Language::Js, "more.js"),
            (Language::Js, "words/all.mjs"),
            (Language::Python, "more.py"),
            (Language::Python, "package/__init__.py"),
            (Language::Python, "wit/project.wit"),
            (Language::Python, FILE),
        ] {
            check(lang, changed, true);
        }
    }

    #[test]
    fn what_no_component_is_built_from_is_not() {
        for (lang, changed) in [
            (Language::Rust, "README.md"),
            (Language::Rust, "tests.toml"),
            (Language::Rust, "tests/all.rs"),
            (Language::Rust, "target/wit/made.rs"),
            (Language::Js, "node_modules/a/index.js"),
            (Language::Js, "more.py"),
            (Language::Python, ".venv/lib/more.py"),
            (Language::Python, "__pycache__/more.py"),
            (Language::Python, "other/plugin.toml"),
            (Language::Python, "words.txt"),
        ] {
            check(lang, changed, false);
        }
    }
}
