//! Runs every command of `docs/plugins.md`, in order, in one shell, prints how long they take, and holds that against the ten
//! minutes that the guide promises. Needs `npm`, `curl` and a package index, and its part with a registry `docker-registry` and
//! `skopeo`: without them it is skipped and says so, except where `TIDEGATE_REQUIRE_LANGUAGES` is set, as in CI.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// What the guide's title says.
const MINUTES: Duration = Duration::from_secs(600);

const REGISTRY: [&str; 2] = ["docker-registry", "skopeo"];

/// What stands between fences, with the word that says what it is.
fn blocks(guide: &str) -> impl Iterator<Item = (&str, &str)> {
    guide.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'))
}

/// The guide's commands; those of a registry where there can be one.
fn commands(guide: &str) -> String {
    let has_registry = are_there(&REGISTRY);
    let commands = blocks(guide).filter_map(|(language, text)| (language == "sh").then_some(text));
    commands.filter(|text| has_registry || !text.contains(REGISTRY[0])).collect()
}

/// Whether programs are there; says which are not.
fn are_there(programs: &[&str]) -> bool {
    let missing: Vec<_> =
        programs.iter().filter(|program| Command::new(program).arg("--version").output().is_err()).collect();
    let required = std::env::var_os("TIDEGATE_REQUIRE_LANGUAGES").is_some();
    assert!(missing.is_empty() || !required, "{missing:?} are required here");
    if !missing.is_empty() {
        tidegate_skipped::skipped!("the guide needs {missing:?}");
    }
    missing.is_empty()
}

fn guide() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plugins.md")).unwrap()
}

#[test]
fn no_command_of_the_guide_stands_where_it_is_not_run() {
    let guide = guide();
    for (language, text) in blocks(&guide).filter(|(language, _)| *language != "sh") {
        let command = text.lines().find(|line| line.starts_with("tidegate "));
        assert_eq!(command, None, "in a block of {language:?}");
    }
    assert!(blocks(&guide).filter(|(language, _)| *language == "sh").count() > 5);
}

#[test]
fn every_command_of_the_guide_does_what_it_says() {
    if !are_there(&["npm", "curl"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let free = || TcpListener::bind("127.0.0.1:0").unwrap();
    let [server, registry] = [free(), free()].map(|port| format!(":{}", port.local_addr().unwrap().port()));
    let script = commands(&guide()).replace(":8080", &server).replace(":5000", &registry);
    let script = script.replace("/tmp/registry", &folder.path().join("registry").display().to_string());
    let has_registry = script.contains(REGISTRY[0]);
    assert_eq!(script.matches("tidegate plugin ").count(), if has_registry { 16 } else { 13 }, "{script}");

    let program = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    // The server must not outlive a command that fails.
    shell.args(["-eu", "-c", &format!("trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}")]);
    shell.current_dir(folder.path()).env("PATH", path);
    shell.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let began = Instant::now();
    let Output { status, stdout, stderr } = shell.output().unwrap();
    let took = began.elapsed();
    eprintln!("the guide's commands, with a program that is built, took {took:.0?}");
    let (said, wrong) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    let without_index = wrong.contains("npm error network") || wrong.contains("ENOTFOUND");
    if without_index && std::env::var_os("TIDEGATE_REQUIRE_LANGUAGES").is_none() {
        tidegate_skipped::skipped!("no package index");
        return;
    }
    assert!(status.success(), "{said}\n{wrong}");
    assert!(took < MINUTES, "the guide's commands took {took:.0?}");
    // As a project, and as a component with a file of cases.
    assert_eq!(said.matches("ok      the word is replaced (").count(), 2, "{said}");
    assert!(said.contains("stages         stream-guard"), "{said}");
    assert_eq!(said.matches("tidegate.toml is good").count(), 2, "{said}");
    assert!(said.contains("signed by      ed25519:") && said.contains("tidegate.lock: 1 plugin\n"), "{said}");
    assert_eq!(said.contains("/plugins/hush:1@sha256:"), has_registry, "{said}");
    let stream = said.split("data: ").skip(1).collect::<String>();
    assert!(stream.contains("[hush]") && stream.contains("[DONE]") && !stream.contains("Tidegate"), "{said}\n{wrong}");
}
