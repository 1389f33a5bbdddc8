//! Reads a config's text so that all that is wrong with its keys is told at once: those that nobody knows, values of the wrong kind,
//! and keys that must be there. serde ends at the first; that one is taken out of what was parsed, and the rest is read again, until
//! it can be. Next: `checks.rs`, for what cannot work together.

use super::wrong::{Wrong, entry};
use super::{Config, nearest};
use anyhow::anyhow;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ops::Range;
use toml::de::{DeArray, DeTable, DeValue, Deserializer, Error};

/// A config as far as it can be read, and what of it cannot, in the order of the text. Fails where that is no TOML.
pub(super) fn read(text: &str) -> anyhow::Result<(Config, Wrong)> {
    let is_no_toml = |error: Error| anyhow!("{}", error.to_string().trim_end());
    let mut rest = DeTable::parse(text).map_err(is_no_toml)?;
    let mut faults = Faults::of(text, DeValue::Table(rest.get_ref().clone()));
    loop {
        let error = match Config::deserialize(Deserializer::from(rest.clone())) {
            Ok(config) => return Ok((config, faults.into_wrong())),
            Err(error) => error,
        };
        let at = error.span().unwrap_or_default();
        let is_noted = faults.note(&error, &at);
        if !is_noted || !take_from_table(rest.get_mut(), &at) {
            return Err(anyhow!("{}", nearest::explain(error.message())));
        }
    }
}

/// What was taken out of a text.
struct Faults<'t> {
    text: &'t str,
    /// All that is in it.
    whole: DeValue<'t>,
    /// Where each begins, and what is said of it.
    told: Vec<(usize, String)>,
    /// Where nothing else is to be said.
    shut: BTreeSet<String>,
}

impl<'t> Faults<'t> {
    fn of(text: &'t str, whole: DeValue<'t>) -> Self {
        Self { text, whole, told: Vec::new(), shut: BTreeSet::new() }
    }

    /// Notes what is wrong with the key or value `at` some place; whether there is one.
    fn note(&mut self, error: &Error, at: &Range<usize>) -> bool {
        let Some(Found { place, within }) = find(&self.whole, at, "") else { return false };
        let message = error.message();
        let missing = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
        // It is there, under another name or with a value of another kind, which was told.
        let is_there = missing.is_some_and(|key| self.shut.contains(&format!("{place}.{key}")));
        let line = 1 + self.text.bytes().take(at.start).filter(|byte| *byte == b'\n').count();
        let fault = (at.start, format!("{place} (line {line}): {}", nearest::explain(message)));
        // A list has the place of its first table, and is wrong as a whole.
        if !is_there && !self.told.contains(&fault) {
            self.told.push(fault);
        }
        // Of a mistyped value the place does not end with it.
        if let Some((mistyped, meant)) = nearest::slip(message)
            && let Some(beside) = place.strip_suffix(mistyped)
        {
            self.shut.insert(format!("{beside}{meant}"));
        }
        self.shut.insert(within);
        true
    }

    fn into_wrong(mut self) -> Wrong {
        self.told.sort();
        let mut wrong = Wrong::default();
        self.told.into_iter().for_each(|(_, why)| wrong.tell(anyhow!(why)));
        self.shut.iter().for_each(|place| wrong.shut(place));
        wrong.settle();
        wrong
    }
}

/// Where something is, and what is not as it is written once that is taken out: the list, of one of its tables.
struct Found {
    place: String,
    within: String,
}

/// The innermost that has its key or its value there: a list begins where its first table does.
fn find(value: &DeValue<'_>, at: &Range<usize>, place: &str) -> Option<Found> {
    match value {
        DeValue::Table(table) => table.iter().find_map(|(key, value)| {
            let name = key.get_ref();
            let place = if place.is_empty() { name.to_string() } else { format!("{place}.{name}") };
            let is_here = key.span() == *at || value.span() == *at;
            let here = || is_here.then(|| Found { within: place.clone(), place: place.clone() });
            find(value.get_ref(), at, &place).or_else(here)
        }),
        DeValue::Array(list) => list.iter().enumerate().find_map(|(i, value)| {
            let here = || (value.span() == *at).then(|| Found { place: entry(place, i), within: place.to_owned() });
            find(value.get_ref(), at, &entry(place, i)).or_else(here)
        }),
        _ => None,
    }
}

/// Takes the same out; whether it is there still.
fn take_out(value: &mut DeValue<'_>, at: &Range<usize>) -> bool {
    match value {
        DeValue::Table(table) => take_from_table(table, at),
        DeValue::Array(list) => take_from_list(list, at),
        _ => false,
    }
}

fn take_from_table(table: &mut DeTable<'_>, at: &Range<usize>) -> bool {
    if table.iter_mut().any(|(_, value)| take_out(value.get_mut(), at)) {
        return true;
    }
    let found = table.iter().find(|(key, value)| key.span() == *at || value.span() == *at);
    let key = found.map(|(key, _)| key.get_ref().to_string());
    key.is_some_and(|key| table.remove(key.as_str()).is_some())
}

fn take_from_list(list: &mut DeArray<'_>, at: &Range<usize>) -> bool {
    if list.iter_mut().any(|value| take_out(value.get_mut(), at)) {
        return true;
    }
    let all = list.len();
    *list = std::mem::replace(list, DeArray::new()).into_iter().filter(|value| value.span() != *at).collect();
    list.len() < all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// What is said of a text, a line each.
    fn told(text: &str) -> Vec<String> {
        let why = Config::parse(text).unwrap_err().to_string();
        match why.split_once(" things are wrong:\n") {
            Some((_, lines)) => lines.lines().map(|line| line.strip_prefix("- ").unwrap_or(line).to_owned()).collect(),
            None => vec![why],
        }
    }

    #[test]
    fn each_key_that_is_unknown_or_has_a_wrong_value_is_told_with_its_place_and_line() {
        let text = "cachedir = \"x\"\n[server]\nlisen = \"127.0.0.1:1\"\nwatch = 1\n[[pipeline.stage]]\nplugin = \"a\"\n\
                    [[pipeline.stage]]\nplugin = \"b\"\nstages = [\"retriever\", \"memry\"]\n[pipeline.stage.grants]\n\
                    htp = {}\nkv_kib = -1\n[tenants.acme]\nlimits = { concurrency = \"x\" }\n";
        let expected = [
            "cachedir (line 1): unknown field `cachedir`; did you mean `cache_dir`?",
            "server.lisen (line 3): unknown field `lisen`; did you mean `listen`?",
            "server.watch (line 4): invalid type: integer `1`, expected a boolean",
            "pipeline.stage 2.stages 2 (line 9): unknown variant `memry`; did you mean `memory`?",
            "pipeline.stage 2.grants.htp (line 11): unknown field `htp`; did you mean `http`?",
            "pipeline.stage 2.grants.kv_kib (line 12): invalid value: integer `-1`, expected a whole number, 0 or more",
            "tenants.acme.limits.concurrency (line 14): invalid type: string \"x\", expected a whole number",
        ];
        let told = told(text);
        assert_eq!(told.len(), expected.len(), "{told:#?}");
        for (line, expected) in told.iter().zip(expected) {
            assert!(line.starts_with(expected), "{line}");
        }
    }

    #[test]
    fn a_key_that_must_be_there_is_told_of_unless_it_is_there_in_another_form() {
        let missing = |place: &str, line: usize, key: &str| format!("{place} (line {line}): missing field `{key}`");
        for (text, expected) in [
            (
                "[[keys]]\nname = \"a\"\n[[keys]]\nhash = \"b\"\n",
                vec![missing("keys 1", 1, "hash"), missing("keys 2", 3, "name")],
            ),
            // Each list begins where its first table does.
            ("[[keys]]\n[[models]]\n", vec![missing("keys 1", 1, "name"), missing("models 1", 2, "name")]),
            ("[store]\npth = \"x\"\n", vec!["store.pth (line 2): unknown field `pth`; did you mean `path`?".into()]),
            ("[store.events]\nnats = \"n\"\n", vec![missing("store", 1, "path")]),
            (
                "[store]\ncolour = \"x\"\n",
                vec![
                    "store.colour (line 2): unknown field `colour`, expected one of".into(),
                    missing("store", 1, "path"),
                ],
            ),
            (
                "[[models]]\nname = 7\n",
                vec!["models 1.name (line 2): invalid type: integer `7`, expected a string".into()],
            ),
        ] {
            let told = told(text);
            assert_eq!(told.len(), expected.len(), "{text}: {told:#?}");
            for line in expected {
                assert!(told.iter().any(|told| told.starts_with(&line)), "{text}: no {line} in {told:#?}");
            }
        }
    }

    #[test]
    fn a_table_where_a_list_is_wanted_is_told_once() {
        assert_eq!(told("[[tenants]]\n[[tenants]]\n").len(), 1);
        assert_eq!(told("[[tenants]]\n[[tenants.a]]\n[[server]]\nlisten = \"x\"\n").len(), 2);
    }

    /// Of what hangs on a key that could not be read; what does not is told beside it.
    #[test]
    fn what_would_only_follow_is_not_told() {
        for follows in [
            // No model is `b`, no plugin, no project; there are no keys, and no store.
            "[[models]]\nname = \"a\"\npath = \"a\"\nfallbacks = [\"b\"]\n[[models]]\nnam = \"b\"\n",
            "[pipeline]\ndefault = [\"b\"]\n[[model]]\nname = \"b\"\n",
            "[[models]]\nname = \"a\"\npth = \"a\"\n",
            "[server]\nlisten = \"0.0.0.0:1\"\n[[key]]\nname = \"a\"\n",
            "[plugins]\nkv = \"store\"\n[stor]\npath = \"x\"\n",
            "[tenants.a]\nbudget = { daily = 1 }\n[store]\npth = \"x\"\n",
        ] {
            assert_eq!(told(follows).len(), 1, "{:#?}", told(follows));
        }
        let project = format!("[[keys]]\nname = \"k\"\nhash = \"blake3:{}\"\nproject = \"web\"\n", "0".repeat(64));
        assert_eq!(told(&format!("{project}[tenants.k.project.web]\n")).len(), 1);
        assert_eq!(told(&format!("{project}[tenants.k.projects]\nweb = 1\n")).len(), 1);
        let plugins =
            "[[pipeline.stage]]\nplugin = \"p\"\nstages = [\"memry\"]\n[tenants.a.projects.b]\nplugins = [\"p\"]\n";
        assert_eq!(told(plugins).len(), 1, "{:#?}", told(plugins));

        let beside =
            told("[server]\nlisen = 1\n[engine]\nkv_cache_mib = 0\n[[keys]]\nname = \"k\"\nhash = \"x\"\nweight = 0\n");
        assert_eq!(beside.len(), 4, "{beside:#?}");
    }

    #[test]
    fn what_is_no_toml_is_told_where() {
        let why = told("[server]\nlisten = \n").join("\n");
        assert!(why.contains("line 2, column 10"), "{why}");
        assert!(told("[server]\n[server]\n").join("\n").contains("duplicate key"));
    }

    #[test]
    fn what_is_right_is_read_as_it_was() {
        let text =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/full/tidegate.toml"));
        let text = text.unwrap();
        assert_eq!(read(&text).unwrap().0, toml::from_str(&text).unwrap());
    }
}
