//! What the program carries: the starter model, the shipped plugins, and the pipeline that uses them.

use anyhow::Context;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Name of the bundled model.
pub const STARTER_NAME: &str = "tidegate-starter";

/// The pipeline of a server without a config.
pub const PIPELINE: &str = include_str!("../assets/pipeline.toml");

const STARTER: [(&str, &[u8]); 5] = [
    ("config.json", include_bytes!("../assets/starter/config.json")),
    ("generation_config.json", include_bytes!("../assets/starter/generation_config.json")),
    ("model.safetensors", include_bytes!("../assets/starter/model.safetensors")),
    ("tokenizer.json", include_bytes!("../assets/starter/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../assets/starter/tokenizer_config.json")),
];

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        /// Shipped plugins by name: components built by `cargo xtask plugins`.
        pub const PLUGINS: &[(&str, &[u8])] =
            &[$(($name, include_bytes!(concat!("../../../plugins/dist/", $name, ".wasm")))),*];
    };
}

shipped![
    "pii-guard",
    "word-guard",
    "tier-router",
    "calculator",
    "folder-retriever",
    "injection-guard",
    "json-guard",
    "audit-observer",
    "webhook-guard",
    "moderation-guard",
    "semantic-router",
    "semantic-cache",
];

/// The names of the shipped plugins.
pub(crate) fn names() -> Vec<&'static str> {
    PLUGINS.iter().map(|(name, _)| *name).collect()
}

/// The component of a shipped plugin.
pub fn plugin(name: &str) -> Option<&'static [u8]> {
    PLUGINS.iter().find(|(shipped, _)| *shipped == name).map(|(_, component)| *component)
}

/// A folder with the starter model, so that it is loaded as any model is: unpacked into `cache` once, under a
/// name that holds the digest of its content.
pub fn starter_folder(cache: &Path) -> anyhow::Result<PathBuf> {
    let folder = cache.join(format!("starter-{}", digest()));
    if is_whole(&folder) {
        return Ok(folder);
    }
    unpack(cache, &folder).with_context(|| {
        format!("cannot unpack the starter model into {}; set `cache_dir`, or give a `--model`", folder.display())
    })?;
    Ok(folder)
}

fn digest() -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, content) in STARTER {
        hasher.update(name.as_bytes()).update(&(content.len() as u64).to_le_bytes()).update(content);
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

fn is_whole(folder: &Path) -> bool {
    STARTER.iter().all(|(name, content)| std::fs::read(folder.join(name)).is_ok_and(|found| found == *content))
}

/// Written aside and renamed, so that a reader never sees half a model; a folder that another thread or process
/// put there meanwhile serves as well.
fn unpack(cache: &Path, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(cache)?;
    let aside = beside(cache)?;
    let put = fill(&aside).and_then(|()| put(&aside, folder));
    if put.is_err() {
        std::fs::remove_dir_all(&aside)?;
    }
    if is_whole(folder) {
        return Ok(());
    }
    put?;
    anyhow::bail!("another process has changed it meanwhile")
}

/// A new folder, which nobody else writes to. Processes of several containers have one number.
fn beside(cache: &Path) -> std::io::Result<PathBuf> {
    let process = std::process::id();
    let mut number = 0_u64;
    loop {
        let aside = cache.join(format!("starter-{process}-{number}.tmp"));
        match std::fs::create_dir(&aside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|()| aside),
        }
    }
}

fn fill(aside: &Path) -> std::io::Result<()> {
    STARTER.iter().try_for_each(|(name, content)| std::fs::write(aside.join(name), content))
}

fn put(aside: &Path, folder: &Path) -> std::io::Result<()> {
    if folder.exists() && !is_whole(folder) {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::rename(aside, folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_starter_is_unpacked_once_and_mended_when_damaged() {
        let cache = tempfile::tempdir().unwrap();
        let folder = starter_folder(cache.path()).unwrap();
        std::fs::write(folder.join("config.json"), "{").unwrap();
        assert_eq!(starter_folder(cache.path()).unwrap(), folder);
        assert!(is_whole(&folder));
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 1);
    }

    #[test]
    fn many_may_unpack_at_once() {
        let cache = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| starter_folder(cache.path()).unwrap())).collect();
            threads.into_iter().for_each(|thread| assert!(is_whole(&thread.join().unwrap())));
        });
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 1);
    }

    /// As those of another container whose processes have the same numbers.
    #[test]
    fn what_another_process_still_unpacks_is_left_to_it() {
        let cache = tempfile::tempdir().unwrap();
        let process = std::process::id();
        let theirs: Vec<_> = (0..64).map(|n| cache.path().join(format!("starter-{process}-{n}.tmp"))).collect();
        for aside in &theirs {
            std::fs::create_dir(aside).unwrap();
            std::fs::write(aside.join("model.safetensors"), "half").unwrap();
        }
        assert!(is_whole(&starter_folder(cache.path()).unwrap()));
        for aside in &theirs {
            assert_eq!(std::fs::read(aside.join("model.safetensors")).unwrap(), b"half");
            assert_eq!(std::fs::read_dir(aside).unwrap().count(), 1);
        }
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 65);
    }

    #[test]
    fn what_cannot_be_put_in_its_place_leaves_nothing_beside_it() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("starter");
        std::fs::write(&folder, "a file").unwrap();
        unpack(cache.path(), &folder).unwrap_err();
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 1);
    }

    #[test]
    fn every_shipped_plugin_is_a_component() {
        for (name, component) in PLUGINS {
            assert_eq!(component[..8], [0, b'a', b's', b'm', 0x0d, 0, 1, 0], "{name}");
        }
    }
}
