//! `cargo xtask release`: the program, built by a profile of its load: first so that it counts what its code does, then by
//! what it counted under the load of `xtask/bench/src/train.rs`. Functions that this does not reach are built as in any release.

use crate::cargo::{self, call};
use crate::rustc::{self, after};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds it; gives its path.
pub fn build(root: &Path) -> Result<PathBuf> {
    let compiler = Compiler::find()?;
    let place = cargo::target(root).join("profiled");
    let work = place.join("work");
    // Cargo does not see that a profile says something else than before.
    if work.exists() {
        std::fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    let (counts, profile) = (work.join("counts"), work.join("tidegate.profdata"));
    // With `--target` the flags are not those of build scripts and macros, which would count, too.
    let build = |flag: &str, file: &Path, packages: &[&str]| {
        let mut build = Command::new(cargo::program());
        build.args(["build", "--release", "--target", &compiler.host]).arg("--target-dir").arg(&work).args(packages);
        build.env("CARGO_ENCODED_RUSTFLAGS", flags(&format!("-C{flag}={}", file.display()))).current_dir(root);
        call(&mut build)
    };
    let built = work.join(&compiler.host).join("release");
    build("profile-generate", &counts, &["--package", "tidegate", "--package", "tidegate-bench"])?;
    // What the load's sender does is not what the program does.
    let mut train = Command::new(built.join("tidegate-bench"));
    call(train.arg(built.join("tidegate")).arg("train").env("LLVM_PROFILE_FILE", "/dev/null"))?;
    // `--sparse`: nothing is said of functions that were not reached, or they would be taken for ones that never are.
    let mut merge = Command::new(&compiler.profdata);
    call(merge.args(["merge", "--sparse", "--output"]).args([&profile, &counts]))?;
    build("profile-use", &profile, &["--package", "tidegate"])?;
    let program = place.join("tidegate");
    std::fs::copy(built.join("tidegate"), &program).with_context(|| format!("cannot write {}", program.display()))?;
    Ok(program)
}

/// What the environment has cargo give the compiler, and one flag more. Flags in cargo's own config are not among them.
fn flags(more: &str) -> String {
    let set = |name| std::env::var(name).ok();
    let given = set("CARGO_ENCODED_RUSTFLAGS")
        .or_else(|| Some(set("RUSTFLAGS")?.split_whitespace().collect::<Vec<_>>().join("\x1f")));
    given.filter(|given| !given.is_empty()).map_or_else(|| more.to_owned(), |given| format!("{given}\x1f{more}"))
}

struct Compiler {
    host: String,
    /// LLVM's program that merges counts, of the compiler's own version.
    profdata: OsString,
}

impl Compiler {
    fn find() -> Result<Self> {
        let program = PathBuf::from(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        let about = rustc::about(&program).with_context(|| format!("cannot run {program:?}"))?;
        let host = after(&about, "host: ").context("`rustc -vV` names no host")?.to_owned();
        let version = after(&about, "LLVM version: ").context("`rustc -vV` names no version of LLVM")?;
        let sysroot = rustc::sysroot(&program).context("`rustc --print sysroot` names no folder")?;
        let own = rustc::tools(&sysroot, &host).join("llvm-profdata");
        let major = version.split('.').next().unwrap_or_default();
        let candidates = [own.into_os_string(), format!("llvm-profdata-{major}").into(), "llvm-profdata".into()];
        let version_of = |program: &OsString| rustc::said(Command::new(program).arg("--version"));
        let fits = |program: &OsString| version_of(program).is_some_and(|said| is_version(&said, major));
        let Some(profdata) = candidates.into_iter().find(fits) else {
            bail!(
                "no llvm-profdata of LLVM {major}, which {program:?} has: `rustup component add llvm-tools`, or a package such \
                 as Debian's `llvm-{major}`"
            )
        };
        Ok(Self { host, profdata })
    }
}

/// Whether `llvm-profdata --version` said that it is of this one.
fn is_version(said: &str, major: &str) -> bool {
    let version = said.split("LLVM version ").nth(1).unwrap_or_default();
    version.split('.').next() == Some(major)
}

#[cfg(test)]
mod tests {
    use super::{after, is_version};

    #[test]
    fn the_merger_is_of_the_compilers_version() {
        let said = "rustc 1.95.0\nhost: x86_64-unknown-linux-gnu\nLLVM version: 22.1.2\n";
        assert_eq!(
            (after(said, "host: "), after(said, "LLVM version: ")),
            (Some("x86_64-unknown-linux-gnu"), Some("22.1.2"))
        );
        let own = "LLVM (http://llvm.org/):\n  LLVM version 22.1.2-rust-1.95.0-stable\n  Optimized build.\n";
        let debian = "Debian LLVM version 22.1.5\n  Optimized build.\n";
        assert_eq!([own, debian].map(|said| is_version(said, "22")), [true, true]);
        assert_eq!(
            ["Debian LLVM version 14.0.6\n", "LLVM version 2.2.0", ""].map(|said| is_version(said, "22")),
            [false; 3]
        );
    }
}
