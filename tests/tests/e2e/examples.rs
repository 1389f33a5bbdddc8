//! Every example is a config that loads, with every plugin it names.

use std::path::{Path, PathBuf};
use tidegate::config::Config;

fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

#[test]
fn every_example_passes_check() {
    let cache = std::env::temp_dir().join("tidegate-tests-cache");
    for example in examples() {
        let mut config = Config::load(&example.join("tidegate.toml")).unwrap();
        config.cache_dir = Some(cache.clone());
        let facts = tidegate::check(&config).unwrap_or_else(|error| panic!("{}: {error:#}", example.display()));
        assert!(!facts.is_empty());
    }
    assert!(examples().len() >= 6);
}

/// The commented keys of the full example are real keys too.
#[test]
fn every_commented_key_of_the_full_example_is_a_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/full/tidegate.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let uncommented: Vec<String> = text
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.starts_with('[') || rest.split(' ').nth(1) == Some("=") => rest.to_owned(),
            _ => line.to_owned(),
        })
        .collect();
    let changed = uncommented.iter().zip(text.lines()).filter(|(new, old)| new != old).count();
    assert!(changed >= 9, "only {changed} commented keys found");
    Config::parse(&uncommented.join("\n")).unwrap();
}
