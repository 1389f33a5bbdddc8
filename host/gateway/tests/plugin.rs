//! `tidegate plugin ...`, as an author uses it: the program itself, in folders of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
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

#[test]
fn inspect_says_what_a_component_is_and_needs() {
    let folder = tempfile::tempdir().unwrap();
    let (good, said) = plugin(folder.path(), &["inspect", &shipped("folder-retriever")]);
    assert!(good, "{said}");
    for part in
        ["stages         retriever", "needs a grant  documents: documents = {", "needs a grant  kv: kv_kib = 1024"]
    {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
    let (good, said) = plugin(folder.path(), &["inspect", "--json", &shipped("pii-guard")]);
    assert!(good, "{said}");
    let report: Value = serde_json::from_str(&said).unwrap();
    let bytes = std::fs::read(shipped("pii-guard")).unwrap();
    let sum = Command::new("sha256sum").arg(shipped("pii-guard")).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    assert_eq!(report["digest"], format!("sha256:{}", sum.split(' ').next().unwrap()));
    assert_eq!((&report["size_bytes"], &report["name"]), (&bytes.len().into(), &"pii-guard".into()));
}

#[test]
fn inspect_refuses_what_is_no_plugin() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("module.wasm"), b"\0asm\x01\0\0\0").unwrap();
    let (good, said) = plugin(folder.path(), &["inspect", "module.wasm"]);
    assert!(!good && said.contains("core module"), "{said}");
    let (good, said) = plugin(folder.path(), &["inspect", "nothing.wasm"]);
    assert!(!good && said.contains("cannot read nothing.wasm"), "{said}");
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

#[test]
fn test_streams_every_chunking_and_tells_what_failed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tests.toml"), CASES).unwrap();
    let (good, said) = plugin(folder.path(), &["test", &shipped("template")]);
    // 11 characters: the whole, and 2 endings of all single ones, 10 cuts, 9 lengths and 64 drawn chunkings.
    assert!(good && said.contains("ok      the word is replaced (169 chunkings)"), "{said}");

    std::fs::write(folder.path().join("tests.toml"), CASES.replace("a bar fobar", "a foo fobar")).unwrap();
    let (good, said) = plugin(folder.path(), &["test", &shipped("template")]);
    assert!(!good && said.contains("FAILED  the word is replaced"), "{said}");
    assert!(said.contains("`text` is \"a bar fobar\", not \"a foo fobar\"") && said.contains("1 of 2 cases"), "{said}");
}

#[test]
fn test_shows_the_log_of_a_case_that_failed_and_of_no_other() {
    let guest = |name: &str| repository().join(format!("tests/guests/dist/{name}.wasm")).display().to_string();
    let folder = tempfile::tempdir().unwrap();
    // It writes a line for each request that it is told of.
    let cases = "[[case]]\nname = \"told\"\nask.observe = \"completed\"\nexpect.seen = true\n";
    std::fs::write(folder.path().join("tests.toml"), cases).unwrap();
    let (good, said) = plugin(folder.path(), &["test", &guest("honest")]);
    assert!(good && !said.contains("log:"), "{said}");
    std::fs::write(folder.path().join("tests.toml"), cases.replace("true", "false")).unwrap();
    let (good, said) = plugin(folder.path(), &["test", &guest("honest")]);
    let line = "        log: INFO  Summary { outcome: \"completed\"";
    assert!(!good && said.contains("FAILED  told\n") && said.contains(line), "{said}");
}

#[test]
fn cases_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (cases, expected) in [
        ("", "there is no [[case]]"),
        ("[[case]]\nname = \"a\"\nask.prompt = \"x\"\nexpect = {}\n", "expects nothing"),
        ("[[case]]\nname = \"a\"\nask.shell = \"x\"\nexpect.a = 1\n", "shell"),
    ] {
        std::fs::write(folder.path().join("tests.toml"), cases).unwrap();
        let (good, said) = plugin(folder.path(), &["test", &shipped("template")]);
        assert!(!good && said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn bench_measures_calls_instances_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tests.toml"), CASES).unwrap();
    let (good, said) = plugin(folder.path(), &["bench", &shipped("template")]);
    let figure = |line: &str| said.lines().find(|l| l.starts_with(line)).unwrap_or_default().to_owned();
    assert!(good && figure("instantiate ").contains(" us ") && figure("call ").contains(" ns "), "{said}");
    assert!(figure("memory ").contains(" KiB "), "{said}");
}

#[test]
fn new_makes_a_project_and_refuses_bad_names_and_stages() {
    let folder = tempfile::tempdir().unwrap();
    let (good, said) = plugin(folder.path(), &["new", "shout", "--lang", "js", "--stage", "stream-guard"]);
    assert!(good && said.contains("tidegate plugin build"), "{said}");
    assert!(folder.path().join("shout/plugin.js").exists() && folder.path().join("shout/tests.toml").exists());
    let (good, said) = plugin(folder.path(), &["new", "shout", "--lang", "js", "--stage", "stream-guard"]);
    assert!(!good && said.contains("is there already"), "{said}");
    let (good, said) = plugin(folder.path(), &["new", "Bad Name", "--lang", "js", "--stage", "stream-guard"]);
    assert!(!good && said.contains("[a-z][a-z0-9-]*"), "{said}");
    let (good, said) = plugin(folder.path(), &["new", "x", "--lang", "rust", "--stage", "shell"]);
    assert!(!good && said.contains("there are: ") && said.contains("stream-guard"), "{said}");
}

#[test]
fn a_missing_tool_is_named_with_the_command_that_installs_it() {
    let folder = tempfile::tempdir().unwrap();
    for (lang, remedy) in [("js", "npm install componentize-qjs"), ("python", "pip install componentize-py")] {
        let (good, said) = plugin(folder.path(), &["new", lang, "--lang", lang, "--stage", "stream-guard"]);
        assert!(good, "{said}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output =
            command.args(["plugin", "build", "--project"]).arg(folder.path().join(lang)).env("PATH", "/nowhere");
        let said = String::from_utf8(output.output().unwrap().stderr).unwrap();
        assert!(said.contains(remedy), "{said}");
    }
}
