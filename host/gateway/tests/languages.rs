//! The language matrix: every template (a kind of stage in a language) is made into a project, built from source and
//! passes its cases, and so do the plugins of `plugins/languages`. A language whose tools are missing is skipped and says
//! so, except where `TIDEGATE_REQUIRE_LANGUAGES` is set, as in CI.
//!
//! Components of C and JavaScript are built in a second each. Those of Rust share one folder, so that the SDK is compiled
//! once; those of Python hold an interpreter, whose compilation by the sandbox is most of what this file costs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tidegate_sandbox::stage::StageKind;

fn plugin(folder: &Path, args: &[&str]) -> (bool, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    program.arg("plugin").args(args).current_dir(folder).env_remove("CARGO_TARGET_DIR");
    program.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let Output { status, stdout, stderr } = program.output().unwrap();
    (status.success(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

/// Builds and tests a project; false where it was skipped.
fn prove(project: &Path) -> bool {
    let (good, said) = plugin(project, &["build"]);
    if !good && (said.contains("to install it:") || said.contains("to install one:")) {
        assert!(std::env::var_os("TIDEGATE_REQUIRE_LANGUAGES").is_none(), "a tool is required here: {said}");
        eprintln!("SKIPPED {}: {said}", project.display());
        return false;
    }
    assert!(good, "{}: {said}", project.display());
    let (good, said) = plugin(project, &["test"]);
    assert!(good && said.contains("ok      "), "{}: {said}", project.display());
    true
}

/// Makes, builds and tests a project of each kind.
fn templates(lang: &str) {
    let folder = tempfile::tempdir().unwrap();
    for kind in StageKind::ALL {
        let project = make(folder.path(), lang, kind.as_str());
        if !prove(&project) {
            return;
        }
        if lang == "rust" && kind == StageKind::PromptGuard {
            tells_why_it_panics(&project);
        }
        let component = std::fs::read(project.join("dist/made.wasm")).unwrap();
        let home = std::env::var("HOME").unwrap();
        let named = component.windows(home.len()).any(|window| window == home.as_bytes());
        // The interpreter that componentize-py brings names folders of those who built it.
        assert!(!named || lang == "python", "the component names {home}");
        let (good, said) = plugin(&project, &["inspect", "dist/made.wasm"]);
        assert!(good && said.contains(&format!("stages         {}\n", kind.as_str())), "{lang}: {said}");
    }
}

/// A Rust plugin that panics, in a call or before the first one: its test shows the panic's own words.
fn tells_why_it_panics(project: &Path) {
    let source = project.join("src/lib.rs");
    let good = std::fs::read_to_string(&source).unwrap();
    for (before, panic) in
        [("let mut texts", "panic!(\"in a call\");"), ("Ok(Self(config))", "panic!(\"at the start\");")]
    {
        let bad = good.replacen(before, &format!("{panic}\n{before}"), 1);
        assert_ne!(bad, good, "{before}");
        std::fs::write(&source, bad).unwrap();
        let (built, said) = plugin(project, &["build"]);
        assert!(built, "{said}");
        let (passed, said) = plugin(project, &["test"]);
        let words = panic.split('"').nth(1).unwrap();
        let line = said.lines().find(|line| line.contains("log: ERROR the plugin panicked")).unwrap_or_default();
        assert!(!passed && line.contains("src/lib.rs") && line.contains(words), "{words}: {said}");
    }
    std::fs::write(&source, good).unwrap();
    assert!(plugin(project, &["build"]).0);
}

/// A new project, in a folder that keeps what the one before it has compiled. Where its other files are the same, cargo
/// has the plugin alone to build.
fn make(folder: &Path, lang: &str, stage: &str) -> PathBuf {
    let new = folder.join("new");
    let (good, said) =
        plugin(folder, &["new", "made", "--lang", lang, "--stage", stage, "--into", new.to_str().unwrap()]);
    assert!(good, "{lang} {stage}: {said}");
    let project = folder.join("made");
    replace(&new.join("made"), &project);
    std::fs::remove_dir_all(new).unwrap();
    project
}

/// Writes the files of one folder into another, but for those that are there already as they are.
fn replace(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            replace(&path, &target);
        } else if std::fs::read(&path).unwrap() != std::fs::read(&target).unwrap_or_default() {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

/// A copy, so that nothing is written beside the sources.
fn example(name: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/languages").join(name);
    let folder = tempfile::tempdir().unwrap();
    replace(&from, &folder.path().join(name));
    prove(&folder.path().join(name));
}

#[test]
fn every_kind_of_stage_in_rust_is_built_from_its_template_and_passes() {
    templates("rust");
}

#[test]
fn every_kind_of_stage_in_c_is_built_from_its_template_and_passes() {
    templates("c");
    example("c-router");
}

#[test]
fn every_kind_of_stage_in_javascript_is_built_from_its_template_and_passes() {
    templates("js");
    example("javascript-json-guard");
}

#[test]
fn every_kind_of_stage_in_python_is_built_from_its_template_and_passes() {
    templates("python");
    example("python-retriever");
}
