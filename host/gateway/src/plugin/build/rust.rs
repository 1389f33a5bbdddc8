//! Rust for `wasm32-unknown-unknown`, which has no WASI. Two ways lead there: a rustc that has the target's standard
//! library, or one with the library's source, which cargo then builds first (unstable, hence `RUSTC_BOOTSTRAP`).
//! Either way rustup's `wasm-component-ld` links, so that the result is a component at once.

use super::{Project, run_tool};
use anyhow::{Context, bail, ensure};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "wasm32-unknown-unknown";
const REMEDY: &str = "\
no compiler for wasm32-unknown-unknown; to install one:

    rustup target add wasm32-unknown-unknown

or, where that target is not to be had, the standard library's source:

    rustup component add rust-src
    apt-get install --no-install-recommends rustc-web rust-web-src   # on Debian";

struct Toolchain {
    rustc: PathBuf,
    from_source: bool,
    linkers: PathBuf,
}

pub(super) fn build(project: &Project, component: &Path) -> anyhow::Result<()> {
    let toolchain = find()?;
    let target_dir = target_dir(&project.folder, std::env::var_os("CARGO_TARGET_DIR"));
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&project.folder).args(["build", "--release", "--lib", "--target", TARGET]);
    cargo.arg("--target-dir").arg(&target_dir).env("RUSTC", &toolchain.rustc).env("PATH", path(&toolchain.linkers)?);
    let linker = toolchain.linkers.join("wasm-component-ld");
    cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", remaps(project, &toolchain)).env_remove("RUSTFLAGS");
    if toolchain.from_source {
        cargo.arg("-Zbuild-std=std,panic_abort").arg("-Zbuild-std-features=optimize_for_size");
        cargo.env("RUSTC_BOOTSTRAP", "1");
    }
    let name = &project.manifest.name;
    let built = target_dir.join(TARGET).join("release").join(format!("{}.wasm", name.replace('-', "_")));
    forget(&built)?;
    run_tool(&mut cargo)?;
    ensure!(
        built.exists(),
        "cargo made no {}; call the package `{name}` in Cargo.toml, as in plugin.toml, with no other `name` in [lib], and have \
         \"cdylib\" in its `crate-type`",
        built.display()
    );
    std::fs::copy(&built, component).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(())
}

/// Removes what an earlier build has left: of a package that has another name now cargo makes another file, and nobody could
/// tell that this one is old. What is up to date cargo puts there again.
fn forget(built: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(built) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", built.display()))
        }
        _ => Ok(()),
    }
}

/// A relative one is in the project's folder, where cargo runs, wherever this program does.
fn target_dir(project: &Path, named: Option<OsString>) -> PathBuf {
    project.join(named.filter(|named| !named.is_empty()).unwrap_or_else(|| "target".into()))
}

/// Panic messages name source files: by crate, not by a folder of the author's machine.
fn remaps(project: &Project, toolchain: &Toolchain) -> OsString {
    let mut remaps = vec![(project.folder.clone(), "plugin")];
    let library = sysroot(&toolchain.rustc).map(|sysroot| sysroot.join("lib/rustlib/src/rust"));
    remaps.extend(library.map(|folder| (folder, "rust")));
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    for sources in home.into_iter().flat_map(|home| [home.join("registry/src"), home.join("git/checkouts")]) {
        let folders = std::fs::read_dir(sources).into_iter().flatten().flatten();
        remaps.extend(folders.map(|folder| (folder.path(), "crates")));
    }
    let mut flags = OsString::new();
    for (i, (from, to)) in remaps.into_iter().enumerate() {
        flags.push(if i == 0 { "" } else { "\x1f" });
        flags.push("--remap-path-prefix=");
        flags.push(from);
        flags.push(format!("={to}"));
    }
    flags
}

/// The first of the active rustc and the system's that can build for wasm.
fn find() -> anyhow::Result<Toolchain> {
    let linkers = linkers().context("no wasm-component-ld; it comes with rustup's toolchains (https://rustup.rs)")?;
    for from_source in [false, true] {
        for rustc in ["rustc", "/usr/bin/rustc"] {
            if sysroot(rustc).is_some_and(|sysroot| has_std(&sysroot, from_source)) {
                return Ok(Toolchain { rustc: rustc.into(), from_source, linkers });
            }
        }
    }
    bail!("{REMEDY}")
}

/// The folder of `wasm-component-ld` in the active toolchain.
pub(super) fn linkers() -> Option<PathBuf> {
    let output = Command::new("rustc").arg("-vV").output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "))?;
    let folder = sysroot("rustc")?.join("lib/rustlib").join(host).join("bin");
    folder.join("wasm-component-ld").exists().then_some(folder)
}

fn sysroot(rustc: impl AsRef<OsStr>) -> Option<PathBuf> {
    let output = Command::new(rustc).args(["--print", "sysroot"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| PathBuf::from(text.trim()))
}

fn has_std(sysroot: &Path, from_source: bool) -> bool {
    let rustlib = sysroot.join("lib/rustlib");
    match from_source {
        true => rustlib.join("src/rust/library/std/Cargo.toml").exists(),
        false => std::fs::read_dir(rustlib.join(TARGET).join("lib")).is_ok_and(|mut files| files.next().is_some()),
    }
}

/// `wasm-component-ld` calls `wasm-ld`, which lies beside it.
pub(super) fn path(linkers: &Path) -> anyhow::Result<OsString> {
    let mut folders = vec![linkers.to_owned(), linkers.join("gcc-ld")];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    Ok(std::env::join_paths(folders)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_target_folder_is_the_projects() {
        let check = |named: Option<&str>, expected: &str| {
            assert_eq!(target_dir(Path::new("/mine"), named.map(OsString::from)), Path::new(expected), "{named:?}");
        };
        check(None, "/mine/target");
        check(Some(""), "/mine/target");
        check(Some("out"), "/mine/out");
        check(Some("/out"), "/out");
    }
}
