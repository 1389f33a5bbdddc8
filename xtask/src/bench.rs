//! `cargo xtask bench`: builds what is measured and runs it. The gateway's figures need nothing else; the
//! engine's peer is llama.cpp from PyPI, named by the environment, and left out by name where it is not there.

use crate::cargo::{self, call};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds and measures; prints tables and JSON.
pub fn run(root: &Path) -> Result<()> {
    cargo::run(root, &["build", "--release", "--package", "tidegate", "--package", "tidegate-bench"])?;
    cargo::run(root, &["build", "--release", "--package", "tidegate-device", "--example", "cpu_bench"])?;
    let release = release(root);
    call(Command::new(release.join("tidegate-bench")).arg(release.join("tidegate")))?;
    engine(root, &release.join("examples/cpu_bench"))
}

/// `cargo xtask bench plugins`: what plugins cost, and beside them the same guard as native code.
pub fn plugins(root: &Path) -> Result<()> {
    let manifest = root.join("plugins/Cargo.toml");
    let example = ["--package", "pii-guard", "--example", "native"];
    let target = root.join(std::env::var_os("PLUGINS_TARGET_DIR").unwrap_or_else(|| "plugins/target".into()));
    let mut build = Command::new(cargo::program());
    build.args(["build", "--release", "--manifest-path"]).arg(manifest).args(example);
    call(build.arg("--target-dir").arg(&target))?;
    cargo::run(root, &["build", "--release", "--package", "tidegate-sandbox", "--example", "boundary"])?;
    let programs = [target.join("release/examples/native"), release(root).join("examples/boundary")];
    measure(root, "plugins", &programs)
}

/// `cargo xtask chaos streams | ledger`: streams that are cut, gateways that are killed, over real sockets.
pub fn chaos(root: &Path, what: &str) -> Result<()> {
    measure(root, what, &[])
}

fn measure(root: &Path, what: &str, programs: &[PathBuf]) -> Result<()> {
    cargo::run(root, &["build", "--release", "--package", "tidegate", "--package", "tidegate-bench"])?;
    let release = release(root);
    call(Command::new(release.join("tidegate-bench")).arg(release.join("tidegate")).arg(what).args(programs))
}

/// `TIDEGATE_BENCH_PYTHON` has `llama-cpp-python`; `TIDEGATE_BENCH_GGUF` is the model, made when it is missing.
fn engine(root: &Path, ours: &Path) -> Result<()> {
    let script = root.join("xtask/bench/llama_peer.py");
    let (Some(python), Some(model)) =
        (std::env::var_os("TIDEGATE_BENCH_PYTHON"), std::env::var_os("TIDEGATE_BENCH_GGUF"))
    else {
        eprintln!(
            "engine: not measured against llama.cpp; set TIDEGATE_BENCH_PYTHON and TIDEGATE_BENCH_GGUF, see {}",
            script.display()
        );
        return call(&mut Command::new(ours));
    };
    if !Path::new(&model).exists() {
        call(Command::new(&python).arg(&script).arg("make").arg(&model))?;
    }
    call(Command::new(&python).arg(&script).arg("compare").arg(&model).arg(ours).args([
        "--threads",
        "1",
        "2",
        "--json",
    ]))
}

fn release(root: &Path) -> PathBuf {
    cargo::target(root).join("release")
}
