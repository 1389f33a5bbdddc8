//! Rules on folders: an example is runnable and explained, the contract's table of versions is true, and the whole is small.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Bytes of the whole tree, the starter model included.
const MAX_TREE_BYTES: u64 = 50 << 20;
/// Bytes of one checkpoint of the fixtures.
const MAX_CHECKPOINT_BYTES: u64 = 300_000;
const CHECKPOINTS: &str = "tests/fixtures/models/";

/// What is larger than a clone should have to carry. Git says what belongs to the tree; outside of a clone nothing does.
pub fn sizes(root: &Path) -> Result<Vec<String>> {
    let listed = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output();
    let Some(listed) = listed.ok().filter(|listed| listed.status.success()) else { return Ok(Vec::new()) };
    let listed = String::from_utf8(listed.stdout).context("git names a file that is not UTF-8")?;
    let bytes = |path: &str| std::fs::symlink_metadata(root.join(path)).map_or(0, |data| data.len());
    let files: Vec<(&str, u64)> = listed.split_terminator('\0').map(|path| (path, bytes(path))).collect();
    Ok(too_large(&files))
}

fn too_large(files: &[(&str, u64)]) -> Vec<String> {
    let mut violations = Vec::new();
    let of =
        |folder: &str| files.iter().filter(|(path, _)| path.starts_with(folder)).map(|(_, bytes)| bytes).sum::<u64>();
    if of("") > MAX_TREE_BYTES {
        violations.push(format!("the tree has {} bytes; {MAX_TREE_BYTES} are the most", of("")));
    }
    let checkpoints = files.iter().filter_map(|(path, _)| path.strip_suffix("config.json"));
    for folder in checkpoints.filter(|folder| folder.starts_with(CHECKPOINTS) && folder.ends_with('/')) {
        if of(folder) > MAX_CHECKPOINT_BYTES {
            violations.push(format!("{folder}: has {} bytes; {MAX_CHECKPOINT_BYTES} are the most", of(folder)));
        }
    }
    violations
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
    fn a_tree_and_a_checkpoint_that_are_too_large_are_named() {
        let config = ("tests/fixtures/models/llama/config.json", 1);
        let weights = |bytes| ("tests/fixtures/models/llama/model.safetensors", bytes);
        assert!(too_large(&[config, weights(299_999)]).is_empty());
        let found = too_large(&[config, weights(300_000), ("host/gateway/assets/model.safetensors", 50 << 20)]);
        assert!(found.len() == 2 && found[1].starts_with("tests/fixtures/models/llama/: "), "{found:?}");
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
