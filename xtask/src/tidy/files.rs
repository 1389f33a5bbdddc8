//! Rules on folders: an example is runnable and explained, a guest is run by a test, the contract's table of
//! versions is true.

use crate::plugins::read_toml;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Examples without a config or a README.
pub fn examples(root: &Path) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    for folder in folders(&root.join("examples"))? {
        let shown = shown(root, &folder);
        if !folder.join("README.md").exists() {
            violations.push(format!("{shown}: has no README.md; say in twenty lines what it shows"));
        }
        let has_config = entries(&folder)?.iter().any(|path| path.extension().is_some_and(|e| e == "toml"));
        if !has_config {
            violations.push(format!("{shown}: has no config; add a tidegate.toml that runs"));
        }
    }
    Ok(violations)
}

/// Guests of `tests/guests` that no test names.
pub fn guests(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("tests/guests");
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut tests = String::new();
    for tests_folder in ["host/sandbox/tests", "host/pipeline/tests", "tests/tests/e2e", "tests/src"] {
        for path in entries(&root.join(tests_folder))? {
            if path.extension().is_some_and(|e| e == "rs") {
                tests.push_str(&std::fs::read_to_string(&path)?);
            }
        }
    }
    let mut violations = Vec::new();
    for guest in folders(&folder)?.iter().filter(|guest| guest.join("Cargo.toml").exists()) {
        let manifest = read_toml(&guest.join("Cargo.toml"))?;
        let name = manifest.get("package").and_then(|p| p.get("name")).and_then(toml::Value::as_str).unwrap_or("");
        let is_component = manifest.get("lib").is_some_and(|lib| lib.get("crate-type").is_some());
        if is_component && !tests.contains(&format!("\"{name}\"")) {
            violations.push(format!("{}: no test names \"{name}\"; add one that runs it", shown(root, guest)));
        }
    }
    Ok(violations)
}

/// Files of the contract whose package version is not the one its README calls current.
pub fn contract(root: &Path) -> Result<Vec<String>> {
    let Some(current) = current_contract(root)? else {
        return Ok(vec!["wit/README.md: its table of versions has no row marked `current`; add one".into()]);
    };
    let wanted = format!("package tidegate:plugin@{current};");
    let mut violations = Vec::new();
    for path in entries(&root.join("wit"))?.iter().filter(|path| path.extension().is_some_and(|e| e == "wit")) {
        let text = std::fs::read_to_string(path)?;
        if !text.lines().any(|line| line.trim() == wanted) {
            let shown = shown(root, path);
            violations.push(format!("{shown}: is not `{wanted}`; make it and the table in wit/README.md agree"));
        }
    }
    Ok(violations)
}

/// The version of the contract that its README calls current.
pub(super) fn current_contract(root: &Path) -> Result<Option<String>> {
    let path = root.join("wit/README.md");
    let readme = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(current_version(&readme).map(str::to_owned))
}

/// The first cell of the row whose state is `current`.
fn current_version(readme: &str) -> Option<&str> {
    let row = readme.lines().find(|line| line.split('|').any(|cell| cell.trim() == "current"))?;
    Some(row.split('|').nth(1)?.trim().trim_matches('`'))
}

/// What is in a folder, in order; nothing where there is none.
pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let read = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = read.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn folders(folder: &Path) -> Result<Vec<PathBuf>> {
    Ok(entries(folder)?.into_iter().filter(|path| path.is_dir()).collect())
}

fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn repository(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("xtask-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (path, text) in files {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        root
    }

    #[test]
    fn an_example_has_a_config_and_a_readme() {
        let root = repository(
            "examples",
            &[("examples/good/README.md", ""), ("examples/good/tidegate.toml", ""), ("examples/bad/notes.txt", "")],
        );
        let found = examples(&root).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|line| line.starts_with("examples/bad: ")), "{found:?}");
    }

    #[test]
    fn a_guest_is_named_in_a_test() {
        let manifest = |name| format!("[package]\nname = \"{name}\"\n[lib]\ncrate-type = [\"cdylib\"]\n");
        let (looper, bomber) = (manifest("looper"), manifest("bomber"));
        let root = repository(
            "guests",
            &[
                ("tests/guests/looper/Cargo.toml", &looper),
                ("tests/guests/bomber/Cargo.toml", &bomber),
                ("host/sandbox/tests/limits.rs", "load(\"looper\")"),
            ],
        );
        assert_eq!(guests(&root).unwrap(), ["tests/guests/bomber: no test names \"bomber\"; add one that runs it"]);
    }

    #[test]
    fn the_table_of_versions_agrees_with_every_file() {
        let readme = "| package | state |\n|---|---|\n| `0.2.0` | current |\n| `0.1.0` | frozen |\n";
        let root = repository(
            "wit",
            &[
                ("wit/README.md", readme),
                ("wit/kv.wit", "package tidegate:plugin@0.2.0;\n"),
                ("wit/log.wit", "package tidegate:plugin@0.1.0;\n"),
            ],
        );
        let found = contract(&root).unwrap();
        assert!(found.len() == 1 && found[0].starts_with("wit/log.wit: "), "{found:?}");
    }
}
