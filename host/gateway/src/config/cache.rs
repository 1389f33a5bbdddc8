//! What comes from the environment: the cache folder, and secrets by name.

use super::Config;
use std::path::PathBuf;

impl Config {
    /// `cache_dir`, else `tidegate` in the user's cache folder, else in the folder for temporary files.
    pub fn cache_folder(&self) -> PathBuf {
        if let Some(folder) = &self.cache_dir {
            return folder.clone();
        }
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
            .unwrap_or_else(std::env::temp_dir)
            .join("tidegate")
    }
}

/// The value of an environment variable that is set and not empty.
pub(crate) fn variable(name: &str) -> anyhow::Result<String> {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => Ok(value),
        _ => anyhow::bail!("environment variable {name} is not set"),
    }
}
