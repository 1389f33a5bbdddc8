//! Parses what `describe` says. The JSON may hold keys that this host does not know: they are logged, so that a
//! plugin may be newer than its host. What the host knows it checks. A server keeps the schema for as long as the plugin, so
//! that its values are bounded as those of a result are.

use crate::error::LoadCause;
use crate::json::Values;
use crate::prefilter::Prefilter;
use crate::stage::Descriptor;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

const MAX_METRICS: usize = 32;
const MAX_NAME_BYTES: usize = 64;
const MAX_SUMMARY_BYTES: usize = 200;
const STREAM_KEYS: [&str; 3] = ["holdback-bytes", "look-behind-bytes", "prefilter"];
const KEYS: [&str; 9] =
    ["name", "version", "summary", "config-schema", "capabilities", "metrics", "mutates", "deterministic", "stream"];
/// What to do about too many values.
const FEWER_VALUES: &str =
    "; let `config-schema` name by `$ref` what it says often, and check by `pattern` what would be a long `enum`";

/// The descriptor in a JSON text.
pub(crate) fn parse(json: &str) -> Result<Descriptor, LoadCause> {
    Values::of_result().take(json, "it").map_err(|why| wrong("", why + FEWER_VALUES))?;
    let value: Value = serde_json::from_str(json).map_err(|e| wrong("", format!("it is not JSON: {e}")))?;
    let Value::Object(said) = value else { return Err(wrong("", "it is not a JSON object")) };
    let name = text(&said, "name")?;
    if !is_plugin_name(&name) {
        return Err(wrong("name", format!("`{}` is not [a-z][a-z0-9-]* of at most 64 bytes", name.escape_debug())));
    }
    let version = text(&said, "version")?;
    if !is_version(&version) {
        return Err(wrong("version", format!("`{}` is no version like 1.2.3", version.escape_debug())));
    }
    let summary = text(&said, "summary")?;
    if summary.is_empty() || summary.len() > MAX_SUMMARY_BYTES || summary.contains(char::is_control) {
        return Err(wrong("summary", format!("it is not one line of at most {MAX_SUMMARY_BYTES} bytes")));
    }
    let unknown_keys = unknown_keys(&said);
    for key in &unknown_keys {
        tracing::info!(plugin = name, key, "the descriptor has a key that this host does not know");
    }
    let Stream { holdback_bytes, look_behind_bytes, prefilter } = stream(&said)?;
    Ok(Descriptor {
        config_schema: schema(&said)?,
        mutates: flag(&said, "mutates")?,
        deterministic: flag(&said, "deterministic")?,
        capabilities: pairs(&said, "capabilities", "reason")?,
        metrics: metrics(&said)?,
        holdback_bytes,
        look_behind_bytes,
        prefilter,
        unknown_keys,
        name,
        version,
        summary,
    })
}

pub(crate) fn wrong(key: &str, message: impl Into<String>) -> LoadCause {
    LoadCause::Descriptor { key: key.into(), message: message.into() }
}

fn get<'a>(said: &'a Map<String, Value>, key: &str) -> Result<&'a Value, LoadCause> {
    said.get(key).ok_or_else(|| wrong(key, "it is missing"))
}

fn text(said: &Map<String, Value>, key: &str) -> Result<String, LoadCause> {
    get(said, key)?.as_str().map(str::to_owned).ok_or_else(|| wrong(key, "it is not a string"))
}

fn flag(said: &Map<String, Value>, key: &str) -> Result<bool, LoadCause> {
    get(said, key)?.as_bool().ok_or_else(|| wrong(key, "it is not true or false"))
}

fn schema(said: &Map<String, Value>) -> Result<Value, LoadCause> {
    let schema = get(said, "config-schema")?;
    crate::schema::check_schema(schema).map_err(|e| wrong(&format!("config-schema{}", e.path), e.message))?;
    Ok(schema.clone())
}

fn metrics(said: &Map<String, Value>) -> Result<BTreeMap<String, String>, LoadCause> {
    let metrics = pairs(said, "metrics", "summary")?;
    if metrics.len() > MAX_METRICS {
        return Err(wrong("metrics", format!("{} names; at most {MAX_METRICS}", metrics.len())));
    }
    match metrics.keys().find(|name| !is_name(name, '_')) {
        Some(name) => {
            let message = format!("`{}` is not [a-z][a-z0-9_]* of at most 64 bytes", name.escape_debug());
            Err(wrong("metrics", message))
        }
        None => Ok(metrics),
    }
}

/// Keys that this host does not know, as paths.
fn unknown_keys(said: &Map<String, Value>) -> Vec<String> {
    let stream = said.get("stream");
    let parts = [
        ("", Some(said), KEYS.as_slice()),
        ("stream.", stream.and_then(Value::as_object), &STREAM_KEYS),
        ("stream.prefilter.", stream.and_then(|stream| stream.get("prefilter")?.as_object()), &Prefilter::KEYS),
    ];
    let unknown = parts.into_iter().flat_map(|(path, part, known)| {
        let keys = part.into_iter().flat_map(Map::keys).filter(|key| !known.contains(&key.as_str()));
        keys.map(move |key| format!("{path}{key}"))
    });
    unknown.collect()
}

/// What it says of its work on streams: the most that it withholds and sees again, and what it need not be asked about.
#[derive(Default)]
struct Stream {
    holdback_bytes: Option<u32>,
    look_behind_bytes: Option<u32>,
    prefilter: Option<Prefilter>,
}

fn stream(said: &Map<String, Value>) -> Result<Stream, LoadCause> {
    let Some(stream) = said.get("stream") else { return Ok(Stream::default()) };
    let stream = stream.as_object().ok_or_else(|| wrong("stream", "it is not an object"))?;
    let bytes = |key: &str| {
        let bytes = |bytes: &Value| {
            let bytes = bytes.as_u64().and_then(|bytes| u32::try_from(bytes).ok());
            bytes.ok_or_else(|| wrong(&format!("stream.{key}"), "it is not a number of bytes"))
        };
        stream.get(key).map(bytes).transpose()
    };
    let (holdback_bytes, look_behind_bytes) = (bytes("holdback-bytes")?, bytes("look-behind-bytes")?);
    let prefilter = stream.get("prefilter").map(|said| Prefilter::parse(said, holdback_bytes)).transpose()?;
    Ok(Stream { holdback_bytes, look_behind_bytes, prefilter: prefilter.flatten() })
}

/// An array of objects with a unique `name` and a text.
fn pairs(said: &Map<String, Value>, key: &str, about: &str) -> Result<BTreeMap<String, String>, LoadCause> {
    let Some(value) = said.get(key) else { return Ok(BTreeMap::new()) };
    let items = value.as_array().ok_or_else(|| wrong(key, "it is not an array"))?;
    let mut found = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        let part = |part: &str| item.get(part).and_then(Value::as_str);
        let (Some(name), Some(text)) = (part("name"), part(about)) else {
            return Err(wrong(&format!("{key}[{index}]"), format!("it is not {{\"name\": text, \"{about}\": text}}")));
        };
        if found.insert(name.to_owned(), text.to_owned()).is_some() {
            return Err(wrong(&format!("{key}[{index}]"), format!("`{}` is there twice", name.escape_debug())));
        }
    }
    Ok(found)
}

/// Whether a plugin may name itself so: `[a-z][a-z0-9-]*` of at most 64 bytes.
pub fn is_plugin_name(name: &str) -> bool {
    is_name(name, '-')
}

fn is_name(name: &str, joint: char) -> bool {
    name.len() <= MAX_NAME_BYTES
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == joint)
}

/// Three numbers, then perhaps `-pre` or `+build`.
fn is_version(version: &str) -> bool {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    version.len() <= MAX_NAME_BYTES
        && version.chars().all(|c| c.is_ascii_alphanumeric() || ".-+".contains(c))
        && core.split('.').count() == 3
        && core.split('.').all(|number| !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::MAX_VALUES;
    use serde_json::json;

    fn good() -> Value {
        json!({
            "name": "pii-guard", "version": "0.1.0", "summary": "Redacts.", "config-schema": {"type": "object"},
            "mutates": true, "deterministic": true,
            "capabilities": [{"name": "kv", "reason": "keeps the index"}],
            "metrics": [{"name": "redactions", "summary": "what was redacted"}],
            "stream": {
                "holdback-bytes": 64, "look-behind-bytes": 0,
                "prefilter": {
                    "classes": {"letters": ["ab"], "ends": [" "]},
                    "states": {"start": {"letters": "start", "ends": "start"}},
                    "run-bytes": 8,
                },
            },
        })
    }

    #[test]
    fn a_whole_descriptor_is_read() {
        let parsed = parse(&good().to_string()).unwrap();
        assert_eq!((parsed.name.as_str(), parsed.version.as_str()), ("pii-guard", "0.1.0"));
        assert_eq!(parsed.metrics["redactions"], "what was redacted");
        assert_eq!(parsed.capabilities["kv"], "keeps the index");
        assert_eq!((parsed.holdback_bytes, parsed.look_behind_bytes), (Some(64), Some(0)));
        assert_eq!(parsed.prefilter.unwrap().through("ba a"), Some(4));
        assert!(parsed.mutates && parsed.deterministic);
    }

    /// Of each, three that are right and some that are wrong.
    const WORDS: [(&str, &[&str]); 4] = [
        ("/name", &["a", "pii-guard", "a1--", "", "A", "1a", "-a", "a_b", "a b", "ä", "a\n"]),
        (
            "/version",
            &[
                "1.2.3",
                "0.1.0-rc.1+x",
                "10.0.0+",
                "1.2",
                "1.2.3.4",
                "1..3",
                "v1.2.3",
                "1.2.x",
                "1.2.3_4",
                "1.2.3\n",
                "",
            ],
        ),
        ("/summary", &["Redacts.", "größe: \"x\"", " ", "", "two\nlines", "a\u{85}b", "a\u{7f}"]),
        ("/metrics/0/name", &["a", "words_found", "a1__", "", "Bad", "a-b", "_a", "a b", "1a"]),
    ];

    /// Authors and tools read the schema, the host its own checks: they must say the same.
    #[test]
    fn the_published_schema_knows_the_same_keys_and_refuses_no_more() {
        let published = include_str!("../../../docs/plugin-descriptor.schema.json");
        let schema: Value = serde_json::from_str(published).unwrap();
        crate::schema::check_schema(&schema).map_err(|e| e.message).unwrap();
        let mut keys: Vec<&str> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let mut known = KEYS;
        keys.sort_unstable();
        known.sort_unstable();
        assert_eq!(keys, known);
        let says = |said: &Value| crate::schema::validate(&schema, said.clone()).is_ok();
        assert!(says(&good()));
        for (place, values) in WORDS {
            for (value, good_one) in values.iter().zip([true, true, true].into_iter().chain(std::iter::repeat(false))) {
                let mut said = good();
                *said.pointer_mut(place).unwrap() = json!(value);
                assert_eq!(
                    (says(&said), parse(&said.to_string()).is_ok()),
                    (good_one, good_one),
                    "{place} = {value:?}"
                );
            }
        }
        for key in keys {
            let (mut without, mut wrong) = (good(), good());
            without.as_object_mut().unwrap().remove(key);
            wrong[key] = json!(3);
            assert_eq!(says(&without), parse(&without.to_string()).is_ok(), "without {key}");
            assert!(!says(&wrong) && parse(&wrong.to_string()).is_err(), "{key} = 3");
        }
        let wrong = [
            ("classes", json!({"letters": ["a-b"]})),
            ("states", json!({"start": {"letters": 3}})),
            ("run-bytes", json!(0)),
        ];
        for (key, wrong) in wrong {
            let (mut without, mut with) = (good(), good());
            without["stream"]["prefilter"].as_object_mut().unwrap().remove(key);
            with["stream"]["prefilter"][key] = wrong;
            for said in [without, with] {
                assert!(!says(&said) && parse(&said.to_string()).is_err(), "{said}");
            }
        }
        for (entry, is_right) in [("-", true), ("éü", true), ("", false), ("c-z", false)] {
            let mut said = good();
            said["stream"]["prefilter"]["classes"]["more"] = json!([entry]);
            assert_eq!((says(&said), parse(&said.to_string()).is_ok()), (is_right, is_right), "{said}");
        }
        let mut unbounded = good();
        unbounded["stream"].as_object_mut().unwrap().remove("holdback-bytes");
        assert!(!says(&unbounded) && parse(&unbounded.to_string()).is_err());
    }

    #[test]
    fn a_newer_descriptor_is_read_all_the_same() {
        let mut newer = good();
        newer["view"] = json!("none");
        newer["stream"]["pre-filter"] = json!({});
        let parsed = parse(&newer.to_string()).unwrap();
        assert_eq!(parsed.unknown_keys, ["view", "stream.pre-filter"]);
        assert!(parsed.prefilter.is_some());
        // It may say of which text the promise does not hold.
        newer["stream"]["prefilter"]["not-behind"] = json!("0123456789");
        let parsed = parse(&newer.to_string()).unwrap();
        assert_eq!(parsed.unknown_keys, ["view", "stream.pre-filter", "stream.prefilter.not-behind"]);
        assert_eq!(parsed.prefilter, None);
    }

    #[test]
    fn one_of_too_many_values_is_refused_before_it_is_read() {
        let with = |more: usize| {
            let mut said = good();
            said["newer"] = json!(vec![0; more]);
            parse(&said.to_string()).map(|_| ())
        };
        assert_eq!(with(MAX_VALUES - 100), Ok(()));
        let why = with(MAX_VALUES).unwrap_err().to_string();
        let told = "its descriptor is wrong: it has too many values: those of one result are 16384 at most; let `config-schema`";
        assert!(why.starts_with(told), "{why}");
        let endless = format!("{{\"name\":[{}", "0,".repeat(MAX_VALUES));
        assert!(parse(&endless).unwrap_err().to_string().contains("too many values"));
    }

    #[test]
    fn each_wrong_key_is_named() {
        for (key, value) in [
            ("name", json!("Pii Guard")),
            ("name", json!(3)),
            ("version", json!("1.0")),
            ("version", json!("1.x.0")),
            ("summary", json!("two\nlines")),
            ("summary", json!("")),
            ("mutates", json!("yes")),
            ("deterministic", Value::Null),
            ("config-schema", json!([])),
            ("capabilities", json!({})),
            ("metrics", json!([{"name": "Bad-Name", "summary": ""}])),
            ("stream", json!(3)),
            ("stream", json!({"holdback-bytes": -1})),
            ("stream", json!({"look-behind-bytes": 0.5})),
            ("stream", json!({"prefilter": {"classes": {"all": ["az"]}, "states": {"start": {}}, "run-bytes": 8}})),
        ] {
            let mut bad = good();
            bad[key] = value.clone();
            match parse(&bad.to_string()) {
                Err(LoadCause::Descriptor { key: named, .. }) => assert!(named.starts_with(key), "{key}: {named}"),
                other => panic!("{key} = {value}: {other:?}"),
            }
        }
        for key in ["name", "version", "summary", "config-schema", "mutates", "deterministic"] {
            let mut bad = good();
            bad.as_object_mut().unwrap().remove(key);
            assert_eq!(parse(&bad.to_string()), Err(wrong(key, "it is missing")));
        }
        assert!(parse("").is_err() && parse("[]").is_err() && parse("{\"name\":").is_err());
    }
}
