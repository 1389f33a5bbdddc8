//! Plugins: a workspace of crates is built for wasm, each library becomes a component in `dist/`, and a lock file
//! notes the digests of its sources and of the component.
//!
//! Components are committed, so nobody needs a wasm toolchain to build or test Tidegate. Invariant: a component
//! in `dist/` was built from the sources beside it; [`check`] says where that does not hold. A component's own
//! bytes depend on the compiler, so what is compared is the digest of the sources.
//! Read next: [`toolchain`] finds a compiler, [`lock`] is the lock file.

mod lock;
mod toolchain;

use anyhow::{Context, Result, bail};
use lock::{Entry, Lock};
use std::path::{Path, PathBuf};
use toolchain::Toolchain;

/// Compiled components above this are worth a look: load time grows with size.
const LARGE_BYTES: usize = 256 * 1024;

/// First bytes of a component (a core module has another version).
const COMPONENT_MAGIC: [u8; 8] = [0, b'a', b's', b'm', 0x0d, 0, 1, 0];

/// A cargo workspace of plugins.
#[derive(Debug)]
struct Workspace {
    folder: PathBuf,
    plugins: Vec<Plugin>,
    /// What every plugin is built from, beside its own crate.
    shared: Vec<PathBuf>,
}

/// A crate that becomes a component.
#[derive(Debug)]
struct Plugin {
    name: String,
    folder: PathBuf,
}

/// Where digests and sources differ, one line each with the remedy.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    for workspace in workspaces(root)? {
        violations.extend(workspace.check(root)?);
    }
    Ok(violations)
}

/// What to build, and where.
#[derive(Debug, Default)]
pub struct Build {
    /// Where cargo works; default: `target/` of each workspace.
    pub target_dir: Option<PathBuf>,
    /// A folder that gets the components in place of `dist/`, which then keeps its own, and its lock.
    pub into: Option<PathBuf>,
    /// The plugins; all of them where none is named.
    pub names: Vec<String>,
}

/// Builds plugins; returns a line for each.
pub fn build(root: &Path, build: &Build) -> Result<Vec<String>> {
    let names = &build.names;
    let workspaces = workspaces(root)?;
    let all = || workspaces.iter().flat_map(|w| &w.plugins);
    if let Some(unknown) = names.iter().find(|name| all().all(|p| p.name != **name)) {
        let known: Vec<&str> = all().map(|p| p.name.as_str()).collect();
        bail!("no plugin `{unknown}`; there are: {}", known.join(", "));
    }
    let toolchain = Toolchain::find()?;
    let mut lines = vec![format!("building with {toolchain}")];
    for workspace in &workspaces {
        let wanted: Vec<&Plugin> =
            workspace.plugins.iter().filter(|p| names.is_empty() || names.contains(&p.name)).collect();
        if !wanted.is_empty() {
            lines.extend(workspace.build(root, &toolchain, build, &wanted)?);
        }
    }
    Ok(lines)
}

/// The shipped plugins, and the guests of the sandbox's tests where they are.
fn workspaces(root: &Path) -> Result<Vec<Workspace>> {
    // The guests' kit takes the SDK's allocator without the SDK.
    let common: Vec<PathBuf> = ["wit", "plugins/sdk/src/alloc.rs", "plugins/sdk/src/alloc"]
        .iter()
        .map(|path| root.join(path))
        .filter(|path| path.exists())
        .collect();
    let folders = [root.join("plugins"), root.join("tests/guests")];
    let present = folders.iter().filter(|folder| folder.join("Cargo.toml").exists());
    present.map(|folder| Workspace::read(folder, &common)).collect()
}

impl Workspace {
    fn read(folder: &Path, common: &[PathBuf]) -> Result<Self> {
        let manifest = read_toml(&folder.join("Cargo.toml"))?;
        let members = manifest.get("workspace").and_then(|w| w.get("members")).and_then(toml::Value::as_array);
        let mut plugins = Vec::new();
        let mut shared = vec![folder.join("Cargo.toml"), folder.join("Cargo.lock")];
        shared.extend_from_slice(common);
        for member in members.into_iter().flatten().filter_map(toml::Value::as_str) {
            // A member that is no plugin is a library of theirs: the SDK, the guests' kit.
            match Plugin::read(&folder.join(member))? {
                Some(plugin) => plugins.push(plugin),
                None => shared.push(folder.join(member)),
            }
        }
        Ok(Self { folder: folder.to_owned(), plugins, shared })
    }

    fn check(&self, root: &Path) -> Result<Vec<String>> {
        let lock_path = self.folder.join("dist/plugins.lock");
        let shown = lock_path.strip_prefix(root).unwrap_or(&lock_path).display();
        let lock = Lock::read(&lock_path)?;
        let mut violations = Vec::new();
        for plugin in &self.plugins {
            let Some(entry) = lock.plugins.get(&plugin.name) else {
                violations.push(format!("{shown}: no entry for `{}`; run `cargo xtask plugins`", plugin.name));
                continue;
            };
            if entry.source != self.source_digest(root, plugin)? {
                let name = &plugin.name;
                violations.push(format!("{shown}: the sources of `{name}` changed; run `cargo xtask plugins`"));
            }
            let component = self.component(plugin);
            if std::fs::read(&component).map(|bytes| lock::digest(&bytes)).ok().as_ref() != Some(&entry.component) {
                let file = component.strip_prefix(root).unwrap_or(&component).display();
                violations.push(format!("{file}: is not the component in the lock; run `cargo xtask plugins`"));
            }
        }
        violations.extend(self.forgotten(root)?);
        let gone = lock.plugins.keys().filter(|name| self.plugins.iter().all(|p| p.name != **name));
        violations.extend(gone.map(|name| format!("{shown}: `{name}` is no plugin; run `cargo xtask plugins`")));
        Ok(violations)
    }

    /// Crates in folders of the workspace that its members lack: nobody builds or runs them.
    fn forgotten(&self, root: &Path) -> Result<Vec<String>> {
        let manifest = read_toml(&self.folder.join("Cargo.toml"))?;
        let members = manifest.get("workspace").and_then(|w| w.get("members")).and_then(toml::Value::as_array);
        let members: Vec<&str> = members.into_iter().flatten().filter_map(toml::Value::as_str).collect();
        let mut forgotten = Vec::new();
        let entries = std::fs::read_dir(&self.folder);
        for entry in entries.with_context(|| format!("cannot read {}", self.folder.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if self.folder.join(&name).join("Cargo.toml").exists() && !members.contains(&name.as_str()) {
                let manifest = self.folder.join("Cargo.toml");
                let manifest = manifest.strip_prefix(root).unwrap_or(&manifest).display();
                forgotten.push(format!("{manifest}: the crate in `{name}` is no member; add it, or remove the folder"));
            }
        }
        forgotten.sort();
        Ok(forgotten)
    }

    fn build(&self, root: &Path, toolchain: &Toolchain, build: &Build, wanted: &[&Plugin]) -> Result<Vec<String>> {
        let target_dir = build.target_dir.clone().unwrap_or_else(|| self.folder.join("target"));
        let packages: Vec<&str> = wanted.iter().map(|p| p.name.as_str()).collect();
        let release = toolchain.build(&self.folder, root, &target_dir, &packages)?;
        let dist = build.into.clone().unwrap_or_else(|| self.folder.join("dist"));
        std::fs::create_dir_all(&dist).with_context(|| format!("cannot make {}", dist.display()))?;
        let mut lines = Vec::new();
        for plugin in wanted {
            let built = release.join(format!("{}.wasm", plugin.name.replace('-', "_")));
            let bytes = std::fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
            accept(&plugin.name, &bytes, root)?;
            let component = dist.join(format!("{}.wasm", plugin.name));
            std::fs::write(&component, &bytes).with_context(|| format!("cannot write {}", component.display()))?;
            let note = if bytes.len() > LARGE_BYTES { " (large)" } else { "" };
            lines.push(format!("{}: {} bytes{note}", plugin.name, bytes.len()));
        }
        if build.into.is_none() {
            self.note(root, wanted)?;
        }
        Ok(lines)
    }

    /// Notes in the lock what was built into `dist/`, and from what.
    fn note(&self, root: &Path, built: &[&Plugin]) -> Result<()> {
        let lock_path = self.folder.join("dist/plugins.lock");
        let mut lock = Lock::read(&lock_path)?;
        lock.plugins.retain(|name, _| self.plugins.iter().any(|p| p.name == *name));
        for plugin in built {
            let component = lock::digest(&std::fs::read(self.component(plugin))?);
            lock.plugins.insert(plugin.name.clone(), Entry { source: self.source_digest(root, plugin)?, component });
        }
        lock.write(&lock_path)
    }

    fn component(&self, plugin: &Plugin) -> PathBuf {
        self.folder.join("dist").join(format!("{}.wasm", plugin.name))
    }

    fn source_digest(&self, root: &Path, plugin: &Plugin) -> Result<String> {
        let paths: Vec<&Path> = self.shared.iter().chain([&plugin.folder]).map(PathBuf::as_path).collect();
        lock::source_digest(root, &paths)
    }
}

impl Plugin {
    /// The plugin in a crate's folder; `None` for a library that is not built as a component.
    fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("Cargo.toml");
        let manifest = read_toml(&path)?;
        let kinds = manifest.get("lib").and_then(|lib| lib.get("crate-type")).and_then(toml::Value::as_array);
        if !kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind.as_str() == Some("cdylib"))) {
            return Ok(None);
        }
        let name = manifest.get("package").and_then(|p| p.get("name")).and_then(toml::Value::as_str);
        let name = name.with_context(|| format!("{}: has no package name", path.display()))?.to_owned();
        Ok(Some(Self { name, folder: folder.to_owned() }))
    }
}

/// Refuses what must not be shipped: a core module, and a component that names folders of this machine.
fn accept(name: &str, bytes: &[u8], root: &Path) -> Result<()> {
    if !bytes.starts_with(&COMPONENT_MAGIC) {
        bail!("`{name}` is not a component: was it linked with wasm-component-ld?");
    }
    let folders = [Some(root.to_owned()), toolchain::cargo_home()];
    for folder in folders.into_iter().flatten() {
        let needle = folder.to_string_lossy().into_owned().into_bytes();
        if bytes.windows(needle.len()).any(|window| window == needle) {
            bail!("`{name}` names {}, a folder of this machine; extend the remaps in xtask", folder.display());
        }
    }
    Ok(())
}

pub(crate) fn read_toml(path: &Path) -> Result<toml::Table> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.parse().with_context(|| format!("{} is not TOML", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    /// They are a workspace of their own, whose profile is for wasm: `cargo test` runs them from here.
    #[test]
    fn the_plugins_own_tests_pass() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/Cargo.toml");
        let mut tests = Command::new(env!("CARGO"));
        tests.args(["test", "--quiet", "--workspace", "--manifest-path", manifest]);
        let ran = tests.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{said}");
    }

    fn repository(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (path, text) in [
            ("wit/types.wit", "package a:b@0.1.0;"),
            ("plugins/Cargo.toml", "[workspace]\nmembers = [\"sdk\", \"one\"]\n"),
            ("plugins/Cargo.lock", "version = 4"),
            ("plugins/sdk/Cargo.toml", "[package]\nname = \"sdk\"\n"),
            ("plugins/one/Cargo.toml", "[package]\nname = \"one\"\n[lib]\ncrate-type = [\"cdylib\", \"rlib\"]\n"),
            ("plugins/one/src/lib.rs", "//! One."),
            ("plugins/one/README.md", "# One"),
        ] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        root
    }

    /// As `build` would leave it.
    fn lock_as_built(root: &Path) {
        for workspace in workspaces(root).unwrap() {
            fs::create_dir_all(workspace.folder.join("dist")).unwrap();
            let mut lock = Lock::default();
            for plugin in &workspace.plugins {
                fs::write(workspace.component(plugin), COMPONENT_MAGIC).unwrap();
                let source = workspace.source_digest(root, plugin).unwrap();
                lock.plugins.insert(plugin.name.clone(), Entry { source, component: lock::digest(&COMPONENT_MAGIC) });
            }
            lock.write(&workspace.folder.join("dist/plugins.lock")).unwrap();
        }
    }

    #[test]
    fn a_fresh_lock_passes_and_every_stale_digest_is_named() {
        let root = repository("stale");
        assert_eq!(check(&root).unwrap(), ["plugins/dist/plugins.lock: no entry for `one`; run `cargo xtask plugins`"]);
        lock_as_built(&root);
        assert!(check(&root).unwrap().is_empty());

        let changed = |path: &str, text: &str, expected: &str| {
            let before = fs::read(root.join(path)).unwrap();
            fs::write(root.join(path), text).unwrap();
            let found = check(&root).unwrap();
            assert!(found.len() == 1 && found[0].contains(expected), "{path}: {found:?}");
            fs::write(root.join(path), before).unwrap();
        };
        changed("plugins/one/src/lib.rs", "//! Two.", "the sources of `one` changed");
        changed("plugins/sdk/Cargo.toml", "[package]\nname = \"kit\"\n", "the sources of `one` changed");
        changed("wit/types.wit", "package a:b@0.2.0;", "the sources of `one` changed");
        changed("plugins/Cargo.lock", "version = 5", "the sources of `one` changed");
        changed("plugins/dist/one.wasm", "x", "plugins/dist/one.wasm: is not the component in the lock");
        fs::write(root.join("plugins/one/README.md"), "# Two").unwrap();
        fs::create_dir_all(root.join("plugins/one/examples")).unwrap();
        fs::write(root.join("plugins/one/examples/two.rs"), "fn main() {}").unwrap();
        fs::write(root.join("plugins/one/tests.toml"), "[[case]]").unwrap();
        assert!(check(&root).unwrap().is_empty(), "neither a README nor an example nor a case is a source");
    }

    #[test]
    fn guests_are_stale_when_the_allocator_changes_and_not_when_the_rest_of_the_sdk_does() {
        let root = repository("allocator");
        for (path, text) in [
            ("plugins/sdk/src/alloc.rs", "//! Allocates."),
            ("plugins/sdk/src/lib.rs", "mod alloc;"),
            ("tests/guests/Cargo.toml", "[workspace]\nmembers = [\"guest\"]\n"),
            ("tests/guests/Cargo.lock", "version = 4"),
            ("tests/guests/guest/Cargo.toml", "[package]\nname = \"guest\"\n[lib]\ncrate-type = [\"cdylib\"]\n"),
        ] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        lock_as_built(&root);
        assert!(check(&root).unwrap().is_empty());
        let guest =
            "tests/guests/dist/plugins.lock: the sources of `guest` changed; run `cargo xtask plugins`".to_owned();
        fs::write(root.join("plugins/sdk/src/lib.rs"), "pub mod alloc;").unwrap();
        assert!(!check(&root).unwrap().contains(&guest));
        fs::write(root.join("plugins/sdk/src/alloc.rs"), "//! Allocates otherwise.").unwrap();
        assert!(check(&root).unwrap().contains(&guest));
    }

    #[test]
    fn a_crate_that_is_no_member_is_named() {
        let root = repository("forgotten");
        lock_as_built(&root);
        fs::create_dir_all(root.join("plugins/two")).unwrap();
        assert!(check(&root).unwrap().is_empty(), "a folder without a crate is none");
        fs::write(root.join("plugins/two/Cargo.toml"), "[package]\nname = \"two\"\n").unwrap();
        let why = "plugins/Cargo.toml: the crate in `two` is no member; add it, or remove the folder";
        assert_eq!(check(&root).unwrap(), [why]);
    }

    #[test]
    fn a_plugin_that_left_is_named() {
        let root = repository("gone");
        lock_as_built(&root);
        fs::write(root.join("plugins/Cargo.toml"), "[workspace]\nmembers = [\"sdk\"]\n").unwrap();
        fs::remove_dir_all(root.join("plugins/one")).unwrap();
        assert_eq!(check(&root).unwrap(), ["plugins/dist/plugins.lock: `one` is no plugin; run `cargo xtask plugins`"]);
    }

    #[test]
    fn core_modules_and_paths_of_the_machine_are_not_accepted() {
        let root = Path::new("/somewhere/tidegate");
        assert!(accept("one", b"\0asm\x01\0\0\0", root).is_err());
        let mut bytes = COMPONENT_MAGIC.to_vec();
        assert!(accept("one", &bytes, root).is_ok());
        bytes.extend(b"..../somewhere/tidegate/plugins");
        assert!(accept("one", &bytes, root).is_err());
    }
}
