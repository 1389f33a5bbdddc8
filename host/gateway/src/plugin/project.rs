//! A plugin's project: a folder with `plugin.toml`, which says how it is built.

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};

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

    /// A file of the author's that has changed since the component was made.
    fn newer_than(&self, component: &Path) -> Option<PathBuf> {
        let changed = |path: &Path| path.metadata().and_then(|about| about.modified()).ok();
        let made = changed(component)?;
        let within = |folder: &str| {
            let listed = std::fs::read_dir(self.folder.join(folder)).into_iter().flatten().flatten();
            listed.map(|entry| entry.path()).filter(|path| path.is_file())
        };
        let named = [self.manifest.lang.source(), FILE.into(), "Cargo.toml".into()].map(|name| self.folder.join(name));
        named
            .into_iter()
            .chain(within("src"))
            .chain(within("wit"))
            .find(|path| changed(path).is_some_and(|at| at > made))
    }
}

/// A name is a plugin's, a folder's and a crate's.
pub(super) fn check_name(name: &str) -> anyhow::Result<()> {
    let good = name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !good {
        bail!("the name `{name}` is not [a-z][a-z0-9-]* of at most 64 bytes");
    }
    Ok(())
}
