//! Rules on source text: where `unsafe` may be allowed, who may write OpenAI's JSON, and how long a file should be.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Folders with Rust sources of ours.
const FOLDERS: &[&str] = &["host", "kernels", "tests", "xtask/src", "plugins"];

/// Where the lint against `unsafe` may be lifted: SIMD and mapped files, kernels, the sandbox's load of its own
/// compiled cache, and of plugins, which reach no memory but their own, the generated bindings and the allocator.
const UNSAFE_PLACES: &[&str] = &[
    "host/device/src/",
    "kernels/",
    "host/sandbox/src/cache.rs",
    "plugins/sdk/src/wasm/",
    "plugins/sdk/src/lib.rs",
    "plugins/sdk/src/alloc.rs",
];

/// What decides and never waits, and the words that it has no need of: the same calls give the same order, in a test too.
const PURE_PLACES: &[&str] = &[
    "host/engine/src/scheduler",
    "host/engine/src/blocks.rs",
    "host/engine/src/prefix.rs",
    "host/fair/src/",
    "host/limits/src/",
];
const IMPURE_WORDS: &[&str] = &[
    "Instant",
    "SystemTime",
    "tokio",
    "async ",
    ".await",
    "std::fs",
    "std::io",
    "std::net",
    "std::thread",
    "getrandom",
];

/// Lines above which a file should be looked at for a second concept.
const LONG_FILE_LINES: usize = 450;

/// Violations in source files.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    for (path, text) in files(root)? {
        violations.extend(check_file(&path, &text).into_iter().map(|what| format!("{path}: {what}")));
    }
    Ok(violations)
}

/// Files that are long enough for a second look.
pub fn long_files(root: &Path) -> Result<Vec<String>> {
    let counted = files(root)?.into_iter().map(|(path, text)| (path, text.lines().count()));
    let long = counted.filter(|(_, lines)| *lines > LONG_FILE_LINES);
    Ok(long.map(|(path, lines)| format!("{path}: {lines} lines; look for the second concept")).collect())
}

fn check_file(path: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    let lifts = ["allow(unsafe_code", "expect(unsafe_code"].iter().any(|lift| text.contains(lift));
    if lifts && !UNSAFE_PLACES.iter().any(|place| path.starts_with(place)) && !path.starts_with("xtask/") {
        violations.push(format!("lifts the lint against `unsafe`; that is for {}", UNSAFE_PLACES.join(", ")));
    }
    // The object names of OpenAI's answers stand for its JSON as a whole.
    let in_program = path.starts_with("host/") && path.contains("/src/") && !path.starts_with("host/wire/");
    if in_program && shipped(text).contains("\"chat.completion") {
        violations.push("writes OpenAI's JSON; that is `wire`'s, use its types".into());
    }
    if PURE_PLACES.iter().any(|place| path.starts_with(place)) {
        let code = || shipped(text).lines().filter(|line| !line.trim_start().starts_with("//"));
        let impure = IMPURE_WORDS.iter().filter(|word| code().any(|line| line.contains(**word)));
        let violation = |word: &&str| format!("has `{}`, and is to be pure; have its caller do that", word.trim());
        violations.extend(impure.map(violation));
    }
    violations
}

/// The file without its unit tests, which stand at its end.
fn shipped(text: &str) -> &str {
    text.split_once("#[cfg(test)]\nmod tests").map_or(text, |(shipped, _)| shipped)
}

/// Every Rust file of ours: path from the root, and text, in order.
pub(super) fn files(root: &Path) -> Result<Vec<(String, String)>> {
    let mut paths = Vec::new();
    for folder in FOLDERS {
        let folder = root.join(folder);
        if folder.exists() {
            collect(&folder, &mut paths).with_context(|| format!("cannot read {}", folder.display()))?;
        }
    }
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/"), text))
    };
    paths.into_iter().map(read).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&path, paths)?;
        } else if name.ends_with(".rs") {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_is_allowed_in_its_places_only() {
        let text = "#![allow(unsafe_code)]\n";
        assert_eq!(check_file("host/engine/src/step.rs", text).len(), 1);
        assert_eq!(check_file("host/sandbox/src/pool.rs", text).len(), 1);
        assert!(check_file("host/device/src/cpu/dot.rs", text).is_empty());
        assert!(check_file("host/sandbox/src/cache.rs", text).is_empty());
    }

    #[test]
    fn what_decides_reads_no_clock_and_waits_for_nothing() {
        let text = "//! No clock, no async code.\nlet now = Instant::now();\nasync fn f() {}\n";
        assert_eq!(check_file("host/engine/src/scheduler/plan.rs", text).len(), 2);
        assert_eq!(check_file("host/limits/src/meter.rs", text).len(), 2);
        assert!(check_file("host/engine/src/step.rs", text).is_empty());
    }

    #[test]
    fn only_wire_writes_openais_json() {
        let text = "let object = \"chat.completion.chunk\";\n";
        assert_eq!(check_file("host/api/src/sse.rs", text).len(), 1);
        assert!(check_file("host/wire/src/sse.rs", text).is_empty());
        assert!(check_file("host/api/src/sse.rs", "post(\"/v1/chat/completions\")").is_empty());
        let tested = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{text}}}\n");
        assert!(check_file("host/api/src/sse.rs", &tested).is_empty());
    }
}
