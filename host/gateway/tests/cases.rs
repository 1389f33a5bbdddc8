//! Every shipped plugin passes the cases in its folder. Its component is the committed one, or, where `TIDEGATE_TEST_PLUGINS`
//! names a folder that `cargo xtask plugins --into` has filled, as in CI, the one that was built there from source; that one
//! is then compared with the committed one too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn plugins() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins").canonicalize().unwrap()
}

/// Folders of the plugins' workspace that become components.
fn names() -> Vec<String> {
    let manifest: toml::Table = std::fs::read_to_string(plugins().join("Cargo.toml")).unwrap().parse().unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    members.filter(|name| *name != "sdk").map(str::to_owned).collect()
}

/// Where components are that were built from source, if there are such.
fn built() -> Option<PathBuf> {
    std::env::var_os("TIDEGATE_TEST_PLUGINS").map(PathBuf::from)
}

/// Runs `tidegate plugin ARGS FILE` in the plugin's folder.
fn plugin(name: &str, args: &[&str], file: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.current_dir(plugins().join(name)).arg("plugin").args(args).arg(file);
    command.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.success(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

#[test]
fn every_shipped_plugin_passes_its_cases() {
    let folder = built().unwrap_or_else(|| plugins().join("dist"));
    let names = names();
    assert!(names.len() > 12, "{names:?}");
    for name in names {
        let (good, said) = plugin(&name, &["test"], &folder.join(format!("{name}.wasm")));
        assert!(good && said.contains("ok      "), "{name}: {said}");
    }
}

/// All but size and digest, which are the compiler's.
#[test]
fn what_is_built_from_source_is_what_is_committed() {
    let Some(built) = built() else {
        return tidegate_skipped::skipped!("plugins built from source: TIDEGATE_TEST_PLUGINS names no folder of them");
    };
    let described = |name: &str, file: &Path| {
        let (good, said) = plugin(name, &["inspect", "--json"], file);
        assert!(good, "{name}: {said}");
        let mut report: Value = serde_json::from_str(&said).unwrap();
        let report = report.as_object_mut().unwrap();
        for of_the_compiler in ["digest", "size_bytes"] {
            report.remove(of_the_compiler).unwrap();
        }
        report.clone()
    };
    for name in names() {
        let file = format!("{name}.wasm");
        let committed = described(&name, &plugins().join("dist").join(&file));
        assert_eq!(described(&name, &built.join(&file)), committed, "{name}");
    }
}
