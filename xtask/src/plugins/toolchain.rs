//! Finds a compiler for `wasm32-unknown-unknown` and runs cargo with it.
//!
//! That target has no WASI, so a component can reach nothing but what it imports. Two ways lead there: a rustc
//! that has the target's standard library, or one with the library's source, which cargo then builds first
//! (unstable, hence `RUSTC_BOOTSTRAP`). Either way rustup's `wasm-component-ld` links, so that the result is a
//! component at once.

use crate::rustc;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "wasm32-unknown-unknown";

const REMEDY: &str = "\
no compiler for wasm32-unknown-unknown. Either of these is enough:
  - rustup target add wasm32-unknown-unknown
  - the standard library's source, which is then compiled: `rustup component add rust-src`, or on Debian
    `apt-get install --no-install-recommends rustc-web rust-web-src`";

/// How the standard library comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Std {
    Installed,
    FromSource,
}

/// A compiler with its sysroot, and the folder of `wasm-component-ld`.
#[derive(Debug)]
pub struct Toolchain {
    rustc: PathBuf,
    sysroot: PathBuf,
    std: Std,
    linkers: PathBuf,
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.std {
            Std::Installed => "its standard library for wasm",
            Std::FromSource => "a standard library built from source",
        };
        write!(f, "{} and {how}", self.rustc.display())
    }
}

impl Toolchain {
    /// The first of the active rustc and the system's that can build for wasm.
    pub fn find() -> Result<Self> {
        let active = PathBuf::from(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        let candidates = [active, PathBuf::from("/usr/bin/rustc")];
        let sysroots: Vec<(PathBuf, PathBuf)> =
            candidates.into_iter().filter_map(|rustc| Some((rustc::sysroot(&rustc)?, rustc))).collect();
        let linkers = sysroots.iter().find_map(|(sysroot, rustc)| linkers(sysroot, rustc));
        let linkers =
            linkers.context("no wasm-component-ld; it comes with rustup's toolchains of Rust 1.82 and later")?;
        for std in [Std::Installed, Std::FromSource] {
            if let Some((sysroot, rustc)) = sysroots.iter().find(|(sysroot, _)| has_std(sysroot, std)) {
                return Ok(Self { rustc: rustc.clone(), sysroot: sysroot.clone(), std, linkers });
            }
        }
        bail!("{REMEDY}")
    }

    /// Builds packages of a workspace as release components; returns the folder they are in.
    pub fn build(&self, workspace: &Path, root: &Path, target_dir: &Path, packages: &[&str]) -> Result<PathBuf> {
        let mut cargo = Command::new(crate::cargo::program());
        cargo.current_dir(workspace).args(["build", "--release", "--locked", "--lib", "--target", TARGET]);
        cargo.arg("--target-dir").arg(target_dir);
        for package in packages {
            cargo.args(["-p", package]);
        }
        cargo.env("RUSTC", &self.rustc).env("PATH", self.path()?);
        cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", self.linkers.join("wasm-component-ld"));
        cargo.env("CARGO_ENCODED_RUSTFLAGS", self.rustflags(root)).env_remove("RUSTFLAGS");
        if self.std == Std::FromSource {
            cargo.arg("-Zbuild-std=std,panic_abort").arg("-Zbuild-std-features=optimize_for_size");
            cargo.env("RUSTC_BOOTSTRAP", "1");
        }
        let status = cargo.status().context("cannot run cargo")?;
        if !status.success() {
            bail!("cargo could not build {} in {}", packages.join(", "), workspace.display());
        }
        Ok(target_dir.join(TARGET).join("release"))
    }

    /// Panic messages name source files: by crate, not by a folder of this machine.
    fn rustflags(&self, root: &Path) -> OsString {
        let mut remaps = vec![(root.to_owned(), "tidegate"), (self.sysroot.join("lib/rustlib/src/rust"), "rust")];
        let registries = cargo_home().and_then(|home| std::fs::read_dir(home.join("registry/src")).ok());
        remaps.extend(registries.into_iter().flatten().flatten().map(|entry| (entry.path(), "crates")));
        let mut flags = OsString::new();
        for (from, to) in remaps {
            if !flags.is_empty() {
                flags.push("\x1f");
            }
            flags.push("--remap-path-prefix=");
            flags.push(from);
            flags.push(format!("={to}"));
        }
        flags
    }

    /// `wasm-component-ld` calls `wasm-ld`, which lies beside it.
    fn path(&self) -> Result<OsString> {
        let mut folders = vec![self.linkers.clone(), self.linkers.join("gcc-ld")];
        folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        Ok(std::env::join_paths(folders)?)
    }
}

/// Cargo's home, where it keeps the sources of dependencies.
pub fn cargo_home() -> Option<PathBuf> {
    std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")))
}

fn has_std(sysroot: &Path, std: Std) -> bool {
    let rustlib = sysroot.join("lib/rustlib");
    match std {
        Std::Installed => {
            std::fs::read_dir(rustlib.join(TARGET).join("lib")).is_ok_and(|mut files| files.next().is_some())
        }
        Std::FromSource => rustlib.join("src/rust/library/std/Cargo.toml").exists(),
    }
}

fn linkers(sysroot: &Path, rustc: &Path) -> Option<PathBuf> {
    let about = rustc::about(rustc)?;
    let folder = rustc::tools(sysroot, rustc::after(&about, "host: ")?);
    folder.join("wasm-component-ld").exists().then_some(folder)
}
