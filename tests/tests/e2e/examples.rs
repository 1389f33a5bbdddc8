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
