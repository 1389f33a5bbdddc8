//! Runs every command of `docs/plugins.md`, in order, in one shell. Needs `npm`, `curl` and a package index: without
//! them it is skipped and says so, except where `TIDEGATE_REQUIRE_LANGUAGES` is set, as in CI.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

/// The text of the guide's shell blocks.
fn commands(guide: &str) -> String {
    let blocks = guide.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.collect()
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn every_command_of_the_guide_does_what_it_says() {
    if ["npm", "curl"].into_iter().any(|program| !is_there(program)) {
        assert!(std::env::var_os("TIDEGATE_REQUIRE_LANGUAGES").is_none(), "npm and curl are required here");
        eprintln!("SKIPPED: the guide needs npm and curl");
        return;
    }
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plugins.md");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let script = commands(&std::fs::read_to_string(guide).unwrap()).replace(":8080", &format!(":{port}"));
    assert_eq!(script.matches("tidegate plugin ").count(), 12, "{script}");

    let folder = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    // The server must not outlive a command that fails.
    shell.args(["-eu", "-c", &format!("trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}")]);
    shell.current_dir(folder.path()).env("PATH", path);
    shell.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let Output { status, stdout, stderr } = shell.output().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    let without_index = wrong.contains("npm error network") || wrong.contains("ENOTFOUND");
    if without_index && std::env::var_os("TIDEGATE_REQUIRE_LANGUAGES").is_none() {
        eprintln!("SKIPPED: no package index");
        return;
    }
    assert!(status.success(), "{said}\n{wrong}");
    assert!(said.contains("ok      the word is replaced") && said.contains("stages         stream-guard"), "{said}");
    assert_eq!(said.matches("tidegate.toml is good").count(), 2, "{said}");
    assert!(said.contains("signed by      ed25519:") && said.contains("tidegate.lock: 1 plugins"), "{said}");
    let stream = said.split("data: ").skip(1).collect::<String>();
    assert!(stream.contains("[hush]") && stream.contains("[DONE]") && !stream.contains("Tidegate"), "{said}\n{wrong}");
}
