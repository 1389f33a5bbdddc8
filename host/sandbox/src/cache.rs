//! Compiled components on disk. Compiling a component takes 30 ms to seconds; loading it back takes microseconds.
//!
//! A file is named by a digest of the component, the compiler's version and its settings, and starts with a digest
//! of its own content, keyed by its name. Invariant: machine code that is loaded was written by this program for
//! this component and this engine, and is whole; anything else is compiled again. Files are written aside and
//! renamed, so that two processes may share a directory. Whose that must be is in `cache/folder.rs`. What authors' tools keep
//! beside them, single functions, is in `cache/functions.rs`.

mod folder;
mod functions;

use crate::config::SandboxConfig;
use crate::error::SandboxError;
use folder::make_private;
use functions::{Functions, Parts, family};
use std::fs;
use std::hash::Hash;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use wasmtime::component::Component;
use wasmtime::{CacheStore, Engine};

const SUFFIX: &str = "cwasm";
/// Of the functions of a family.
const FUNCTIONS: &str = "functions";
const DIGEST: usize = blake3::OUT_LEN;

/// The cache directory, or none.
pub(crate) struct Cache {
    dir: Option<PathBuf>,
    max_bytes: u64,
    functions: Option<Arc<Functions>>,
}

impl Cache {
    /// Makes the directory, private to this user, and refuses one that others may write to or have made.
    pub(crate) fn open(config: &SandboxConfig) -> Result<Self, SandboxError> {
        let dir = config.cache_dir.as_deref().map(make_private).transpose()?;
        let functions = (config.for_authors && dir.is_some()).then(Arc::default);
        Ok(Self { dir, max_bytes: config.cache_bytes, functions })
    }

    /// What the engine's compiler is to be given, where single functions are kept.
    pub(crate) fn functions(&self) -> Option<Arc<dyn CacheStore>> {
        self.functions.clone().map(|functions| functions as Arc<dyn CacheStore>)
    }

    /// The compiled component: from the directory, or compiled and stored there. A cache that cannot be read or
    /// written is logged and costs time only.
    pub(crate) fn component(&self, engine: &Engine, bytes: &[u8]) -> wasmtime::Result<Component> {
        let Some(dir) = &self.dir else { return Component::from_binary(engine, bytes) };
        let key = key(engine, bytes);
        let path = dir.join(format!("{key}.{SUFFIX}"));
        if let Some(component) = read(&path, &key).and_then(|code| revive(engine, &code, &path)) {
            return Ok(component);
        }
        let (component, parts) = self.compile(dir, engine, bytes)?;
        if self.functions.is_some() {
            tracing::debug!(compiled = parts.compiled, known = parts.known, "functions of a plugin");
        }
        match component.serialize() {
            Ok(code) => self.store(dir, &path, &key, &code),
            Err(error) => tracing::warn!(path = %path.display(), "a compiled plugin is not cached: {error:#}"),
        }
        Ok(component)
    }

    /// Compiles a component: for authors with the functions that are kept of its family, and keeps its own.
    fn compile(&self, dir: &Path, engine: &Engine, bytes: &[u8]) -> wasmtime::Result<(Component, Parts)> {
        let compile = || Component::from_binary(engine, bytes);
        let Some((functions, family)) = self.functions.as_ref().zip(family(bytes)) else {
            return Ok((compile()?, Parts::default()));
        };
        let key = key(engine, family.as_bytes());
        let path = dir.join(format!("{key}.{FUNCTIONS}"));
        let (component, parts) = functions.with(read(&path, &key), compile);
        let component = component?;
        if let Some(content) = &parts.content {
            self.store(dir, &path, &key, content);
        }
        Ok((component, parts))
    }

    fn store(&self, dir: &Path, path: &Path, key: &blake3::Hash, code: &[u8]) {
        if let Err(error) = write_aside(dir, path, key, code) {
            tracing::warn!(path = %path.display(), "a compiled plugin is not cached: {error}");
        } else if let Err(error) = trim(dir, path, self.max_bytes) {
            tracing::warn!(dir = %dir.display(), "compiled plugins that are too many stay for now: {error}");
        }
    }
}

/// Names what a file holds: of the component, or of the family, and of everything that the machine code depends on.
fn key(engine: &Engine, bytes: &[u8]) -> blake3::Hash {
    struct Digest(blake3::Hasher);
    impl std::hash::Hasher for Digest {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut digest = Digest(blake3::Hasher::new());
    engine.precompile_compatibility_hash().hash(&mut digest);
    digest.0.update(blake3::hash(bytes).as_bytes());
    digest.0.finalize()
}

/// The machine code in a file, when the file is whole and bears its own name, and nobody else may have written it.
fn read(path: &Path, key: &blake3::Hash) -> Option<Vec<u8>> {
    let mut content = match folder::read_own(path) {
        Ok(Some(content)) => content,
        Ok(None) => {
            tracing::warn!(path = %path.display(), "a cached plugin may be written by others and is compiled again");
            return None;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %path.display(), "a cached plugin cannot be read and is compiled again: {error}");
            return None;
        }
    };
    let whole = content
        .split_first_chunk::<DIGEST>()
        .is_some_and(|(digest, code)| blake3::keyed_hash(key.as_bytes(), code) == blake3::Hash::from_bytes(*digest));
    if !whole {
        tracing::warn!(path = %path.display(), "a cached plugin is damaged and is compiled again");
        return None;
    }
    content.drain(..DIGEST);
    Some(content)
}

/// Turns machine code back into a component.
#[allow(unsafe_code)]
fn revive(engine: &Engine, code: &[u8], path: &Path) -> Option<Component> {
    // SAFETY: `deserialize` wants bytes that `serialize` made, unchanged. These carry a digest keyed by the name of
    // the component and the engine's settings (checked in `read`, on this very copy), which only `store` writes, and of that name
    // only what `serialize` made (the key of a family is no component's: no component is as short): the
    // file is this user's and no other user may write to it (checked in `read_own`, on the file that was read), in a directory
    // of which the same is true, and in whose place none can put another (checked in `make_private`, which gives the path that
    // this one is below). So they are what `serialize` made for
    // this component; wasmtime itself checks its version and settings once more.
    let revived = unsafe { Component::deserialize(engine, code) };
    revived
        .inspect_err(|error| {
            tracing::warn!(path = %path.display(), "a cached plugin does not fit and is compiled again: {error:#}");
        })
        .ok()
}

fn write_aside(dir: &Path, path: &Path, key: &blake3::Hash, code: &[u8]) -> io::Result<()> {
    let (mut file, aside) = part(dir, &key.to_string(), folder::create_own)?;
    let written =
        file.write_all(blake3::keyed_hash(key.as_bytes(), code).as_bytes()).and_then(|()| file.write_all(code));
    written.and_then(|()| fs::rename(&aside, path)).inspect_err(|_| {
        let _ = fs::remove_file(&aside);
    })
}

/// A new file, for what is not whole yet. `make` fails where there is one of that name, be it another process's: those of
/// several containers have one number.
fn part(dir: &Path, of: &str, make: impl Fn(&Path) -> io::Result<fs::File>) -> io::Result<(fs::File, PathBuf)> {
    let process = std::process::id();
    let mut number = 0_u64;
    loop {
        let path = dir.join(format!("{of}.{process}.{number}.part"));
        match make(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|file| (file, path)),
        }
    }
}

/// Files that are not whole are no one's after this time; until then another process writes them.
const WRITTEN_BY_THEN: Duration = Duration::from_secs(600);

/// Removes the files that were written longest ago, until the rest is within the bound. `keep` stays. What another process has
/// renamed or removed meanwhile is no error.
fn trim(dir: &Path, keep: &Path, max_bytes: u64) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let is_part = path.extension().is_some_and(|e| e == "part");
        if !is_part && path.extension().is_none_or(|e| e != SUFFIX && e != FUNCTIONS) {
            continue;
        }
        let Some(about) = unless_gone(entry.metadata())? else { continue };
        let modified = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let is_young = modified.elapsed().is_ok_and(|age| age < WRITTEN_BY_THEN);
        if !(is_part && is_young) {
            files.push((modified, about.len(), path));
        }
    }
    files.sort_by_key(|(modified, ..)| std::cmp::Reverse(*modified));
    let mut total = 0u64;
    for (_, bytes, path) in files {
        total = total.saturating_add(bytes);
        if total > max_bytes && path != keep {
            unless_gone(fs::remove_file(&path))?;
        }
    }
    Ok(())
}

fn unless_gone<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        done => done.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(dir: &Path, name: &str, age: Duration) -> PathBuf {
        let path = dir.join(name);
        let file = fs::File::create(&path).unwrap();
        file.set_len(10).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
        path
    }

    #[test]
    fn what_another_process_still_writes_stays_and_what_nobody_finished_goes() {
        let dir = tempfile::tempdir().unwrap();
        let [keep, young, old, older, stale] =
            [("k.cwasm", 0), ("y.1.1.part", 1), ("o.cwasm", 5), ("o.functions", 6), ("s.2.1.part", 601)]
                .map(|(name, age)| made(dir.path(), name, Duration::from_secs(age)));
        trim(dir.path(), &keep, 10).unwrap();
        assert_eq!([keep, young, old, older, stale].map(|path| path.exists()), [true, true, false, false, false]);
    }

    /// Of an interpreter; they differ in a section that no compiler reads.
    #[test]
    fn a_build_is_put_together_of_the_one_before_where_that_is_whole() {
        let first = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/frozen/0.1.0/json-guard-javascript.wasm");
        let first = fs::read(first).unwrap();
        let second = [&first[..], &[0, 2, 1, b'x']].concat();
        assert!(family(&first).is_some_and(|of| family(&second) == Some(of)));
        let dir = tempfile::tempdir().unwrap();
        let config =
            SandboxConfig { cache_dir: Some(dir.path().to_owned()), for_authors: true, ..SandboxConfig::default() };
        let cache = Cache::open(&config).unwrap();
        let engine = crate::engine::build(&config, cache.functions()).unwrap();
        let parts = |build: &[u8]| {
            let parts = cache.compile(dir.path(), &engine, build).unwrap().1;
            (parts.compiled, parts.known)
        };
        let (compiled, known) = parts(&first);
        assert!(compiled > 1000 && known == 0, "{compiled} and {known}");
        let (compiled, known) = parts(&second);
        assert!(known > 5 * compiled, "{compiled} and {known}");
        let file = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let mut damaged = fs::read(&file).unwrap();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        fs::write(&file, damaged).unwrap();
        assert_eq!(parts(&second).1, 0, "it is not whole");
        assert!(parts(&second).1 > 0, "it is again");
    }

    /// As that of another container whose processes have the same numbers.
    #[test]
    fn a_name_that_another_process_writes_under_is_left_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let key = blake3::hash(b"component");
        let process = std::process::id();
        let theirs: Vec<_> =
            (0..64).map(|n| made(dir.path(), &format!("{key}.{process}.{n}.part"), Duration::ZERO)).collect();
        let path = dir.path().join("k.cwasm");
        write_aside(dir.path(), &path, &key, b"code").unwrap();
        assert_eq!(read(&path, &key).unwrap(), b"code");
        for path in &theirs {
            assert_eq!(fs::read(path).unwrap(), [0; 10]);
        }
        fs::create_dir(dir.path().join("folder.cwasm")).unwrap();
        write_aside(dir.path(), &dir.path().join("folder.cwasm"), &key, b"code").unwrap_err();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 64 + 2, "no more than these, the whole one and the folder");
    }

    #[test]
    fn what_is_gone_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let plain = made(dir.path(), "plain", Duration::ZERO);
        assert!(matches!(unless_gone(fs::remove_file(dir.path().join("gone"))), Ok(None)));
        unless_gone(fs::read_dir(plain)).unwrap_err();
    }
}
