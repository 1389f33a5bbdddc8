//! The language matrix: the templates' stream guard and the plugins of `plugins/languages` are built from source and
//! pass their cases. A language whose tools are missing is skipped and says so, except where
//! `TIDEGATE_REQUIRE_LANGUAGES` is set, as in CI.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, Output};

fn plugin(project: &Path, command: &str) -> (bool, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    program.args(["plugin", command, "--project"]).arg(project).env_remove("CARGO_TARGET_DIR");
    program.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let Output { status, stdout, stderr } = program.output().unwrap();
    (status.success(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

/// Builds and tests a project; false where it was skipped.
fn prove(project: &Path) -> bool {
    let (good, said) = plugin(project, "build");
    if !good && (said.contains("to install it:") || said.contains("to install one:")) {
        assert!(std::env::var_os("TIDEGATE_REQUIRE_LANGUAGES").is_none(), "a tool is required here: {said}");
        eprintln!("SKIPPED {}: {said}", project.display());
        return false;
    }
    assert!(good, "{}: {said}", project.display());
    let (good, said) = plugin(project, "test");
    assert!(good && said.contains("ok      "), "{}: {said}", project.display());
    true
}

fn template(lang: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    program.args(["plugin", "new", "made", "--lang", lang, "--stage", "stream-guard"]).current_dir(folder.path());
    assert!(program.output().unwrap().status.success());
    if prove(&folder.path().join("made")) {
        let component = std::fs::read(folder.path().join("made/dist/made.wasm")).unwrap();
        let home = std::env::var("HOME").unwrap();
        let named = component.windows(home.len()).any(|window| window == home.as_bytes());
        assert!(!named, "the component names {home}");
    }
}

/// A copy, so that nothing is written beside the sources.
fn example(name: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/languages").join(name);
    let folder = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-r").arg(&from).arg(folder.path()).status().unwrap();
    assert!(copied.success());
    prove(&folder.path().join(name));
}

#[test]
fn a_guard_in_rust_is_built_from_its_template_and_passes() {
    template("rust");
}

#[test]
fn a_guard_and_a_router_in_c_are_built_and_pass() {
    template("c");
    example("c-router");
}

#[test]
fn guards_in_javascript_are_built_and_pass() {
    template("js");
    example("javascript-json-guard");
}

#[test]
fn a_retriever_in_python_is_built_and_passes() {
    example("python-retriever");
}
