//! `plugin new`, and folders that are no project.

use super::{CASES, plugin};
use std::process::Command;

#[test]
fn new_makes_a_project_and_refuses_bad_names_and_stages() {
    let folder = tempfile::tempdir().unwrap();
    let (good, said) = plugin(folder.path(), &["new", "shout", "--lang", "js", "--stage", "stream-guard"]);
    assert!(good && said.contains("tidegate plugin build"), "{said}");
    assert!(folder.path().join("shout/plugin.js").exists() && folder.path().join("shout/tests.toml").exists());
    let (good, said) = plugin(folder.path(), &["new", "shout", "--lang", "js", "--stage", "stream-guard"]);
    assert!(!good && said.contains("is there already"), "{said}");
    let within = ["new", "shout", "--lang", "js", "--stage", "stream-guard", "--into", "my plugins"];
    let (good, said) = plugin(folder.path(), &within);
    assert!(good && said.contains("cd 'my plugins/shout'"), "{said}");
    let (good, said) = plugin(folder.path(), &["new", "Bad Name", "--lang", "js", "--stage", "stream-guard"]);
    assert!(!good && said.contains("[a-z][a-z0-9-]*"), "{said}");
    let (good, said) = plugin(folder.path(), &["new", "x", "--lang", "rust", "--stage", "shell"]);
    assert!(!good && said.contains("there are: ") && said.contains("stream-guard"), "{said}");
    let sdk =
        |lang: &str| plugin(folder.path(), &["new", "tidegate-plugin-sdk", "--lang", lang, "--stage", "stream-guard"]);
    let (good, said) = sdk("rust");
    assert!(!good && said.contains("give it another name"), "{said}");
    assert!(!folder.path().join("tidegate-plugin-sdk").exists());
    let (good, said) = sdk("c");
    assert!(good, "{said}");
}

#[test]
fn a_missing_tool_is_named_with_the_command_that_installs_it() {
    let folder = tempfile::tempdir().unwrap();
    // What is looked for is what the command installs, wherever it is run.
    let at = |rest: &str| folder.path().canonicalize().unwrap().join(rest).display().to_string();
    for (lang, remedy, place) in [
        ("js", "npm install componentize-qjs", format!("--prefix {}\n", at("js"))),
        ("python", "pip install componentize-py", format!("{} install ", at("python/.venv/bin/pip"))),
    ] {
        let (good, said) = plugin(folder.path(), &["new", lang, "--lang", lang, "--stage", "stream-guard"]);
        assert!(good, "{said}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output =
            command.args(["plugin", "build", "--project"]).arg(folder.path().join(lang)).env("PATH", "/nowhere");
        let said = String::from_utf8(output.output().unwrap().stderr).unwrap();
        assert!(said.contains(remedy) && said.contains(&place), "{place}: {said}");
    }
}

/// Each command says what it takes itself.
#[test]
fn a_folder_without_a_project_is_told_what_the_command_takes() {
    let folder = tempfile::tempdir().unwrap();
    for (args, hint) in [
        (&["build"][..], "`--project DIR` names one"),
        (&["test"], "`--project DIR` names one"),
        (&["pack"], "`tidegate plugin pack FILE` a component"),
        (&["push", "file:mirror"], "`--from DIR` names a packed plugin"),
    ] {
        let (good, said) = plugin(folder.path(), args);
        assert!(!good && said.contains("plugin.toml") && said.contains(hint), "{args:?}: {said}");
        assert_eq!(said.contains("--project"), hint.contains("--project"), "{args:?}: {said}");
    }
    std::fs::write(folder.path().join("tests.toml"), CASES).unwrap();
    let (good, said) = plugin(folder.path(), &["test", "mistyped.wasm"]);
    assert!(!good && said.contains("cannot read the plugin mistyped.wasm") && !said.contains("plugin build"), "{said}");
    assert!(plugin(folder.path(), &["new", "made", "--lang", "js", "--stage", "observer"]).0);
    for command in ["test", "pack"] {
        let (good, said) = plugin(&folder.path().join("made"), &[command]);
        assert!(
            !good && said.contains("made.wasm is not there; `tidegate plugin build` makes it"),
            "{command}: {said}"
        );
    }
}
