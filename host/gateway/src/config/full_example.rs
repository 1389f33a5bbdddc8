//! `examples/full/tidegate.toml` shows every key, and none that is no key. What the keys are, the parser itself says: a table
//! with a key that cannot be is refused with those that it may have.

use super::{BreakerConfig, Config, UpstreamBreakerConfig, UpstreamRetryConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;
use toml::{Table, Value};

static EXAMPLE: LazyLock<String> = LazyLock::new(|| {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/full/tidegate.toml");
    std::fs::read_to_string(file).unwrap()
});
const UNKNOWN: &str = "no-such-key";

/// The example with the keys that stand in comments.
fn uncommented() -> String {
    let line = |line: &'static str| match line.strip_prefix("# ") {
        Some(rest) if rest.starts_with('[') || rest.split(' ').nth(1) == Some("=") => rest,
        _ => line,
    };
    EXAMPLE.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The text below each header, by its name; what is above the first has none.
fn sections(text: &str) -> BTreeMap<String, String> {
    let mut sections = BTreeMap::<String, String>::new();
    let mut name = String::new();
    for line in text.lines() {
        if line.starts_with('[') {
            let header = line.split(" #").next().unwrap_or_default();
            name = header.trim().trim_matches(['[', ']']).to_owned();
        }
        *sections.entry(name.clone()).or_default() += &format!("{line}\n");
    }
    sections
}

/// The way to a table.
type Way = Vec<(String, Option<usize>)>;

fn tables(table: &Table, way: &Way, found: &mut Vec<Way>) {
    found.push(way.clone());
    for (key, value) in table {
        let further = |place| [way.as_slice(), &[(key.clone(), place)]].concat();
        match value {
            Value::Table(inner) => tables(inner, &further(None), found),
            Value::Array(all) => {
                let inner = all.iter().enumerate().filter_map(|(i, value)| Some((i, value.as_table()?)));
                inner.for_each(|(i, inner)| tables(inner, &further(Some(i)), found));
            }
            _ => {}
        }
    }
}

/// The keys of the table at `way`; none where any key may be.
fn keys(whole: &Table, way: &Way) -> BTreeSet<String> {
    let mut whole = Value::Table(whole.clone());
    let mut table = &mut whole;
    for (key, place) in way {
        table = &mut table[key.as_str()];
        if let Some(place) = place {
            table = &mut table[*place];
        }
    }
    table.as_table_mut().unwrap().insert(UNKNOWN.into(), Value::Boolean(true));
    let refused = whole.try_into::<Config>().err().map(|error| error.message().to_owned()).unwrap_or_default();
    let Some(known) = refused.strip_prefix(&format!("unknown field `{UNKNOWN}`")) else { return BTreeSet::new() };
    known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|found| found == word)
}

#[test]
fn every_key_of_the_full_example_is_a_key() {
    let changed = uncommented().lines().zip(EXAMPLE.lines()).filter(|(new, old)| new != old).count();
    assert!(changed >= 9, "only {changed} commented keys found");
    Config::parse(&uncommented()).unwrap();
}

#[test]
fn every_key_is_in_the_full_example() {
    let (whole, sections) = (uncommented().parse::<Table>().unwrap(), sections(&uncommented()));
    let mut ways = Vec::new();
    tables(&whole, &Way::new(), &mut ways);
    let (mut num_keys, mut missing) = (0, BTreeSet::new());
    for way in ways {
        let name = way.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>().join(".");
        // A section says its keys itself; those of a table in braces, which may stand in several, are said in one.
        let text = sections.get(&name).filter(|_| !name.is_empty()).map_or(EXAMPLE.as_str(), String::as_str);
        for key in keys(&whole, &way) {
            num_keys += 1;
            if !has_word(text, &key) && !sections.contains_key(&format!("{name}.{key}")) {
                missing.insert(format!("{name}.{key}"));
            }
        }
    }
    assert!(missing.is_empty(), "not in examples/full/tidegate.toml: {missing:?}");
    assert!(num_keys > 200, "only {num_keys} keys were looked for");
}

/// Keys that stand in comments have no default, or one that their comment tells.
#[test]
fn what_the_full_example_says_of_keys_is_what_counts_without_them() {
    let sections = sections(&EXAMPLE);
    let parse = |start: &str, names: &[&str]| {
        let text: String = names.iter().map(|name| sections[*name].as_str()).collect();
        Config::parse(&(start.to_owned() + &text)).unwrap()
    };
    let mut said = parse("", &["server", "server.streams", "limits", "egress", "compute", "engine", "plugins"]);
    let default = Config::default();
    // It depends on the device.
    assert_eq!(said.engine.cache_mib(), default.engine.cache_mib());
    said.engine.kv_cache_mib = default.engine.kv_cache_mib;
    assert_eq!(said.server, default.server);
    assert_eq!(said.limits, default.limits);
    assert_eq!(said.compute, default.compute);
    assert_eq!(said.engine, default.engine);
    assert_eq!(said.plugins, default.plugins);
    let said = parse("[[models]]\nname = \"m\"\nupstream = \"http://h\"\n", &["models.retry", "models.breaker"]);
    assert_eq!(said.models[0].retry, Some(UpstreamRetryConfig::default()));
    assert_eq!(said.models[0].breaker, Some(UpstreamBreakerConfig::default()));
    let said = parse("[[pipeline.stage]]\nplugin = \"pii-guard\"\n", &["pipeline.stage.breaker"]);
    assert_eq!(said.pipeline.unwrap().stage[0].breaker, BreakerConfig::default());
}
