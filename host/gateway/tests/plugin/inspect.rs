//! `plugin inspect`: what a component is, needs, and says of itself.

use super::{guest, plugin, repository, shipped};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;

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
    assert!(!said.contains("first look"), "{said}");
    let (good, said) = plugin(folder.path(), &["inspect", &shipped("pii-guard")]);
    for what in ["that there is nothing to say of a prompt", "how much of a stream may leave"] {
        assert!(good && said.contains(&format!("first look     it says at a glance {what}")), "{said}");
    }
    // It imports `http` alone: what it says of secrets is what its requests need.
    let (good, said) = plugin(folder.path(), &["inspect", &shipped("webhook-guard")]);
    let needs: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("needs a grant  ")).collect();
    assert!(good && needs.len() == 2, "{said}");
    assert!(needs[0].starts_with("http: http = {") && needs[1].starts_with("secrets: secrets = {"), "{said}");
    let (good, said) = plugin(folder.path(), &["inspect", "--json", &shipped("pii-guard")]);
    assert!(good, "{said}");
    let report: Value = serde_json::from_str(&said).unwrap();
    let bytes = std::fs::read(shipped("pii-guard")).unwrap();
    let sum = Command::new("sha256sum").arg(shipped("pii-guard")).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    assert_eq!(report["digest"], format!("sha256:{}", sum.split(' ').next().unwrap()));
    assert_eq!((&report["size_bytes"], &report["name"]), (&bytes.len().into(), &"pii-guard".into()));
    assert_eq!(report["glances"], json!(["prompt-glance", "stream-glance"]));
}

/// An author's next build is compiled with them; what is compiled for a server is compiled whole.
#[test]
fn functions_are_kept_of_what_an_author_builds_and_of_nothing_that_is_for_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let (component, config) = (shipped("pii-guard"), folder.path().join("tidegate.toml"));
    std::fs::write(&config, format!("[[pipeline.stage]]\nplugin = \"pii-guard\"\nfile = {component:?}\n")).unwrap();
    let kept = |args: &[&str]| {
        let cache = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.current_dir(folder.path()).args(args).env("XDG_CACHE_HOME", cache.path());
        let said = command.output().unwrap();
        assert!(said.status.success(), "{said:?}");
        let files = std::fs::read_dir(cache.path().join("tidegate/plugins")).unwrap();
        let names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        ["cwasm", "functions"].map(|kind| names.iter().filter(|name| name.ends_with(kind)).count())
    };
    assert_eq!(kept(&["plugin", "inspect", &component]), [1, 1]);
    assert_eq!(kept(&["plugin", "lock", "tidegate.toml"]), [1, 0]);
    let [compiled, functions] = kept(&["check", "tidegate.toml"]);
    assert!(compiled > 0 && functions == 0, "{compiled} and {functions}");
}

/// Those that need no grant in one line, the others with what grants them; in JSON all of them.
#[test]
fn inspect_names_all_imports() {
    let folder = tempfile::tempdir().unwrap();
    for (name, free, granted) in [
        ("calculator", "log, types", &[][..]),
        ("folder-retriever", "clock, log, metrics, types", &["documents", "kv"]),
        ("semantic-cache", "log, metrics, types", &["kv", "models", "vectors"]),
    ] {
        let (good, said) = plugin(folder.path(), &["inspect", &shipped(name)]);
        assert!(good && said.contains(&format!("\nimports        {free}\n")), "{said}");
        let needs = said.lines().filter_map(|line| line.strip_prefix("needs a grant  ")?.split(':').next());
        assert_eq!(needs.collect::<Vec<_>>(), granted, "{name}");
        let (_, said) = plugin(folder.path(), &["inspect", "--json", &shipped(name)]);
        let report: Value = serde_json::from_str(&said).unwrap();
        let imports = report["imports"].as_array().unwrap().iter().map(|import| import["interface"].as_str().unwrap());
        let mut expected: Vec<&str> = free.split(", ").chain(granted.iter().copied()).collect();
        expected.sort_unstable();
        let expected = expected.iter().map(|name| format!("tidegate:plugin/{name}@0.1.0"));
        assert_eq!(imports.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn inspect_says_in_words_what_it_says_in_json() {
    let folder = tempfile::tempdir().unwrap();
    for (component, parts) in [
        (guest("watches"), ["at most 4096 bytes of a stream; a server gives 512, more needs", "metrics        none"]),
        (guest("honest"), ["withholds      at most 64 bytes of a stream\n", "metrics        told: "]),
        (
            shipped("pii-guard"),
            [
                "not asked      about text of letters, break letters, backslashes, other letters, digits, ",
                ", as its 34 states say, of which at most 19 bytes wait",
            ],
        ),
        (
            shipped("semantic-router"),
            [
                "metrics        embedded: texts that the model made vectors of\nmetrics        routed: questions for which ",
                "needs a grant  models: ",
            ],
        ),
    ] {
        let (good, said) = plugin(folder.path(), &["inspect", &component]);
        assert!(good && parts.iter().all(|part| said.contains(part)), "{parts:?}: {said}");
    }
}

/// Whoever reads `/metrics` looks in one of the two.
#[test]
fn the_readme_of_each_shipped_plugin_says_of_its_metrics_what_inspect_says() {
    let folder = tempfile::tempdir().unwrap();
    for (name, _) in tidegate::bundled::PLUGINS {
        let (good, said) = plugin(folder.path(), &["inspect", "--json", name]);
        assert!(good, "{said}");
        let report: Value = serde_json::from_str(&said).unwrap();
        let part = |metric: &Value, key: &str| metric[key].as_str().unwrap().to_owned();
        let metrics = report["metrics"].as_array().unwrap();
        let told = metrics.iter().map(|metric| format!("`{}` ({})", part(metric, "name"), part(metric, "summary")));
        let told: BTreeSet<String> = told.collect();
        let readme = std::fs::read_to_string(repository().join(format!("plugins/{name}/README.md"))).unwrap();
        let text = readme.split_whitespace().collect::<Vec<_>>().join(" ");
        let listed =
            text.split_once("Metrics: ").and_then(|(_, behind)| behind.split_once(").")).map(|(listed, _)| listed);
        let listed = listed.into_iter().flat_map(|listed| listed.split("), ")).map(|metric| format!("{metric})"));
        assert_eq!(listed.collect::<BTreeSet<_>>(), told, "{name}");
    }
}

#[test]
fn inspect_takes_the_name_of_a_shipped_plugin_where_no_file_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let (good, named) = plugin(folder.path(), &["inspect", "pii-guard"]);
    assert_eq!((good, &named), (true, &plugin(folder.path(), &["inspect", &shipped("pii-guard")]).1));
    std::fs::copy(shipped("calculator"), folder.path().join("pii-guard")).unwrap();
    let (good, said) = plugin(folder.path(), &["inspect", "pii-guard"]);
    assert!(good && said.starts_with("calculator "), "{said}");
}

#[test]
fn inspect_refuses_what_is_no_plugin() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("module.wasm"), b"\0asm\x01\0\0\0").unwrap();
    let (good, said) = plugin(folder.path(), &["inspect", "module.wasm"]);
    assert!(!good && said.contains("core module"), "{said}");
    let (good, said) = plugin(folder.path(), &["inspect", "nothing.wasm"]);
    assert!(!good && said.contains("cannot read nothing.wasm") && said.contains("shipped are pii-guard, "), "{said}");
}
