//! `tidegate plugin ...`, as an author uses it: the program itself, in folders of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bench;
mod cases;
mod inspect;
mod project;
mod streams;
mod world;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs `tidegate plugin ARGS` in a folder; gives success and everything it said.
fn plugin(folder: &Path, args: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.current_dir(folder).arg("plugin").args(args);
    command.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.success(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

fn shipped(name: &str) -> String {
    repository().join(format!("plugins/dist/{name}.wasm")).canonicalize().unwrap().display().to_string()
}

fn guest(name: &str) -> String {
    repository().join(format!("tests/guests/dist/{name}.wasm")).display().to_string()
}

const CASES: &str = r#"
[[case]]
name = "the word is replaced"
ask.stream = "a foo fofoo"
expect = { text = "a bar fobar" }

[[case]]
name = "another word"
config = { word = "größe", replacement = "-" }
ask.stream = "die größe der größ"
expect.text = "die - der größ"
"#;

/// Runs cases of a guest, which does as it is told. The cases of the shipped plugins (`tests/cases.rs`) ask the rest.
fn run_cases(component: &str, cases: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tests.toml"), cases).unwrap();
    plugin(folder.path(), &["test", component])
}
