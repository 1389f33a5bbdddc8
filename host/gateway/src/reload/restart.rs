//! What of a changed config a reload does not take, by the names that the file has for it.

use crate::config::{Config, ModelConfig};
use anyhow::bail;
use std::collections::BTreeMap;
use tidegate_types::Quota;
use toml::{Table, Value};

/// Keys of one section that are named.
const MOST_NAMED: usize = 8;
/// What a reload takes of a model, and of the plugins together.
const TAKEN: [(&str, &[&str]); 2] = [("models", &["limits", "price"]), ("plugins", &["trusted_keys", "locked"])];

/// Refuses a change that needs a restart.
pub(super) fn check_restart(old: &Config, new: &Config) -> anyhow::Result<()> {
    let sections = [
        ("[server]", "server", old.server == new.server),
        ("[[models]]", "models", without_terms(old) == without_terms(new)),
        ("[limits]", "limits", old.limits == new.limits),
        ("[compute]", "compute", old.compute == new.compute),
        ("[engine]", "engine", old.engine == new.engine),
        ("[store]", "store", old.store == new.store),
        ("[plugins] beside trusted_keys and locked", "plugins", old.plugins.is_as_large_as(&new.plugins)),
        ("[egress]", "egress", old.egress == new.egress),
        ("[shared]", "shared", old.shared == new.shared),
        ("[traces]", "traces", old.traces == new.traces),
        ("cache_dir", "cache_dir", old.cache_dir == new.cache_dir),
    ];
    let changed = sections.iter().filter(|(_, _, same)| !same);
    let changed: Vec<String> = changed.map(|(shown, section, _)| with_keys(shown, section, old, new)).collect();
    match &changed[..] {
        [] => Ok(()),
        [one] => bail!("{one} has changed, which needs a restart; nothing of the new config was taken"),
        all => bail!("{} have changed, which needs a restart; nothing of the new config was taken", all.join(", ")),
    }
}

/// The models, but for limits and prices, which a reload takes.
fn without_terms(config: &Config) -> Vec<ModelConfig> {
    config.models.iter().map(|model| ModelConfig { limits: Quota::default(), price: None, ..model.clone() }).collect()
}

/// A section with its keys that are not what they were, as far as the files say so.
fn with_keys(shown: &str, section: &str, old: &Config, new: &Config) -> String {
    let written = |config: &Config| config.written.as_ref().and_then(|file| file.get(section).cloned());
    let taken = TAKEN.iter().find(|(name, _)| *name == section).map_or(&[][..], |(_, keys)| *keys);
    let mut keys = Vec::new();
    differences(written(old).as_ref(), written(new).as_ref(), "", taken, &mut keys);
    let more = keys.len().saturating_sub(MOST_NAMED);
    keys.truncate(MOST_NAMED);
    match (keys.is_empty(), more) {
        (true, _) => shown.to_owned(),
        (false, 0) => format!("{shown} ({})", keys.join(", ")),
        (false, more) => format!("{shown} ({} and {more} more)", keys.join(", ")),
    }
}

/// Notes what is at another value, by its `way` within the section. Entries of a list are known by their names.
fn differences(old: Option<&Value>, new: Option<&Value>, way: &str, taken: &[&str], found: &mut Vec<String>) {
    if old == new {
        return;
    }
    let table = |value: Option<&Value>| value.map_or_else(|| Some(Table::new()), |value| value.as_table().cloned());
    if let (Some(old), Some(new)) = (table(old), table(new)) {
        let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
        for key in keys.filter(|key| !taken.contains(&key.as_str())) {
            let way = if way.is_empty() { key.clone() } else { format!("{way}.{key}") };
            differences(old.get(key), new.get(key), &way, &[], found);
        }
    } else if let (Some(old), Some(new)) = (entries(old), entries(new)) {
        found.extend(new.keys().filter(|name| !old.contains_key(*name)).map(|name| format!("`{name}` is new")));
        for (name, entry) in &old {
            match new.get(name) {
                Some(now) => differences(Some(entry), Some(now), &format!("`{name}`"), taken, found),
                None => found.push(format!("`{name}` is gone")),
            }
        }
    } else if !way.is_empty() {
        found.push(way.to_owned());
    }
}

/// A list of what has names, by these; what is not there is an empty one.
fn entries(list: Option<&Value>) -> Option<BTreeMap<&str, &Value>> {
    let Some(list) = list else { return Some(BTreeMap::new()) };
    list.as_array()?.iter().map(entry).collect()
}

/// One of a list, with its name.
fn entry(entry: &Value) -> Option<(&str, &Value)> {
    Some((entry.get("name")?.as_str()?, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_restart_is_named_by_its_keys() {
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let file = folder.path().join("tidegate.toml");
            std::fs::write(&file, text).unwrap();
            Config::load(&file).unwrap()
        };
        let model = |name: &str, more: &str| format!("[[models]]\nname = \"{name}\"\nupstream = \"http://{more}\n");
        let before = read(&format!(
            "[server]\nsettle_ms = 1\n[server.streams]\nkeep_s = 60\n{}{}",
            model("a", "h\""),
            model("b", "h\"\nlimits = { concurrency = 3 }")
        ));
        let why = |text: &str| check_restart(&before, &read(text)).err().map(|why| why.to_string()).unwrap_or_default();
        let server = "[server]\nsettle_ms = 1\n[server.streams]\nkeep_s = 60\n";
        let (a, b) = (model("a", "h\""), model("b", "h\""));
        // Terms are taken.
        assert_eq!(why(&format!("{server}{a}{b}limits = {{ concurrency = 4 }}\n")), "");
        for (text, expected) in [
            (
                format!("[server]\nmax_inflight = 7\n[server.streams]\nkeep_s = 61\n{a}{b}"),
                "[server] (settle_ms, streams.keep_s, max_inflight) has",
            ),
            (format!("{server}{}{b}", model("a", "i\"")), "[[models]] (`a`.upstream) has"),
            (format!("{server}{a}{}", model("c", "h\"")), "[[models]] (`c` is new, `b` is gone) has"),
            (format!("{server}{b}{a}"), "[[models]] has"),
            (
                format!("{server}{a}{b}[engine]\nmax_restarts = 7\n[store]\npath = \"d\"\n"),
                "[engine] (max_restarts), [store] (path) have",
            ),
            (format!("cache_dir = \"c\"\n{server}{a}{b}"), "cache_dir has"),
        ] {
            assert!(why(&text).starts_with(&format!("{expected} changed, which needs a restart")), "{}", why(&text));
        }
    }
}
