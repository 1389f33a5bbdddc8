//! The lock file: for each plugin the digest of what it was built from and of what was built.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const HEADER: &str = "# Written by `cargo xtask plugins`; a test compares it with the sources.\n\n";

/// The lock file's content.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    /// Entries by plugin name.
    #[serde(default)]
    pub plugins: BTreeMap<String, Entry>,
}

/// Digests of one plugin.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Of its crate, the SDK, the contract, and its workspace's manifest and lock.
    pub source: String,
    /// Of the component's bytes.
    pub component: String,
}

impl Lock {
    /// The lock at `path`; an empty one where there is none.
    pub fn read(path: &Path) -> Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => toml::from_str(&text).with_context(|| format!("{} is not a lock file", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Writes the lock, entries by name.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = format!("{HEADER}{}", toml::to_string(self)?);
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// BLAKE3 in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Digest of all sources under `paths` (files or folders): names relative to `root` and contents, in order of the
/// names. Markdown, examples and the files of `tidegate plugin` are no sources, and neither is what `.gitignore` and editors
/// would leave.
pub fn source_digest(root: &Path, paths: &[&Path]) -> Result<String> {
    let mut files = Vec::new();
    for path in paths {
        collect(path, &mut files).with_context(|| format!("cannot read {}", path.display()))?;
    }
    files.sort();
    files.dedup();
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let content = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().replace('\\', "/");
        // Lengths keep one file's end apart from the next one's name.
        for part in [name.as_bytes(), &content] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if path.is_file() {
        if is_source(path) {
            files.push(path.to_owned());
        }
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with('.') && !["target", "proptest-regressions", "examples"].contains(&&*name) {
            collect(&path, files)?;
        }
    }
    Ok(())
}

fn is_source(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if ["plugin.toml", "tests.toml"].contains(&&*name) {
        return false;
    }
    let kinds = [".rs", ".toml", ".lock", ".wit", ".txt", ".json"];
    kinds.iter().any(|kind| name.ends_with(kind))
}
