//! `cargo xtask gpu DIR`: all that `tests/gpu/run.sh` needs on a machine with a GPU, built on one without.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Test programs, by the name that the script knows them by.
const CHECKS: [(&str, &str); 2] = [("emulated", "kernel_checks"), ("backend", "backend_checks")];
const FIXTURES: [&str; 3] = ["llama", "mistral", "qwen3"];

/// Builds and copies; `DIR/gpu/run.sh DIR OUT` is the command there.
pub fn bundle(root: &Path, to: &Path) -> Result<()> {
    // The whole workspace each time, so that dependencies keep their features and are built once.
    let mut builds = built(root, &["build", "--bin", "tidegate", "--example", "gpu_bench"])?;
    builds.extend(built(root, &["test", "--no-run", "--test", CHECKS[0].0, "--test", CHECKS[1].0])?);
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let names = [("tidegate", "tidegate"), ("gpu_bench", "gpu_bench")];
    for (built, name) in names.iter().chain(&CHECKS) {
        let found = builds.iter().find(|(target, _)| target == built);
        let (_, from) = found.with_context(|| format!("cargo built no `{built}`"))?;
        std::fs::copy(from, to.join(name))?;
    }
    for name in FIXTURES {
        copy(&root.join("tests/fixtures/models").join(name), &to.join("fixtures").join(name))?;
    }
    copy(&root.join("tests/gpu"), &to.join("gpu"))
}

/// Executables that a call of cargo made, by target.
fn built(root: &Path, args: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let mut command = Command::new(crate::cargo::program());
    command.args(&args[..1]).args(["--workspace", "--release", "--message-format", "json-render-diagnostics"]);
    let output = command.args(&args[1..]).stderr(std::process::Stdio::inherit()).current_dir(root).output()?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", output.status);
    }
    let text = String::from_utf8(output.stdout)?;
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let executable = |message: serde_json::Value| {
        Some((message["target"]["name"].as_str()?.to_owned(), PathBuf::from(message["executable"].as_str()?)))
    };
    Ok(messages.filter_map(executable).collect())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        match path.is_dir() {
            true => copy(&path, &target)?,
            false => drop(std::fs::copy(&path, &target)?),
        }
    }
    Ok(())
}
