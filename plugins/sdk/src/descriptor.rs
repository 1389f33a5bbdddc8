//! What a plugin says of itself: name, version, settings with their defaults, and what it needs from the host.
//!
//! The host reads it as JSON, so it can grow. The settings serve three readers from one place: the host checks
//! the operator's config against the schema, the SDK fills in defaults, and a plugin's README test compares. JSON
//! is written as text: a tree of values would be a third of a small plugin's component.

use crate::json::{list, quote};

/// A plugin's descriptor.
#[derive(Clone, Debug)]
pub struct Descriptor {
    name: String,
    version: String,
    summary: String,
    settings: Vec<Setting>,
    capabilities: Vec<(Capability, String)>,
    metrics: Vec<(String, String)>,
    holdback_bytes: Option<u32>,
    look_behind_bytes: Option<u32>,
    prefilter: Option<Prefilter>,
    mutates: bool,
    deterministic: bool,
}

/// What the host may grant beyond log, metrics and clock, which every plugin has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Key-value storage of the plugin and tenant.
    Kv,
    /// Read-only folders that the operator mounted.
    Documents,
    /// Names of secrets that the host fills into requests.
    Secrets,
    /// Requests to granted origins.
    Http,
    /// Questions to granted models.
    Models,
    /// Nearest neighbours in granted collections.
    Vectors,
    /// Random bytes.
    Random,
}

impl Capability {
    /// The name in the contract and in the operator's grants.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Documents => "documents",
            Self::Secrets => "secrets",
            Self::Http => "http",
            Self::Models => "models",
            Self::Vectors => "vectors",
            Self::Random => "random",
        }
    }
}

impl Descriptor {
    /// A descriptor without settings and needs, of a plugin that changes nothing.
    pub fn new(name: &str, version: &str, summary: &str) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            summary: summary.into(),
            settings: Vec::new(),
            capabilities: Vec::new(),
            metrics: Vec::new(),
            holdback_bytes: None,
            look_behind_bytes: None,
            prefilter: None,
            mutates: false,
            deterministic: false,
        }
    }

    /// Adds a setting.
    pub fn setting(mut self, setting: Setting) -> Self {
        self.settings.push(setting);
        self
    }

    /// Adds several settings.
    pub fn settings(mut self, settings: impl IntoIterator<Item = Setting>) -> Self {
        self.settings.extend(settings);
        self
    }

    /// Asks for a capability; `reason` is what the operator reads before granting it.
    pub fn needs(mut self, capability: Capability, reason: &str) -> Self {
        self.capabilities.push((capability, reason.into()));
        self
    }

    /// Declares a metric; the host refuses undeclared ones.
    pub fn metric(mut self, name: &str, summary: &str) -> Self {
        self.metrics.push((name.into(), summary.into()));
        self
    }

    /// It rewrites prompts or redacts streams: it then runs in order, not beside other guards.
    pub fn mutates(mut self) -> Self {
        self.mutates = true;
        self
    }

    /// The same input gives the same output: no clock, no storage, no memory between calls.
    pub fn deterministic(mut self) -> Self {
        self.deterministic = true;
        self
    }

    /// A stream guard's promise: it never keeps more than this many bytes of a channel waiting. The host's cap is
    /// the operator's; [`crate::testing`] checks that the promise is kept.
    pub fn holdback(mut self, bytes: u32) -> Self {
        self.holdback_bytes = Some(bytes);
        self
    }

    /// Of text that has left, a stream guard sees at most so many bytes again, and its last character all the same, unless
    /// that left unjudged. Without this it is as many as the host has, 256: they are copied into the guest with each window,
    /// which a guard that looks at none of them is spared.
    pub fn look_behind(mut self, bytes: u32) -> Self {
        self.look_behind_bytes = Some(bytes);
        self
    }

    /// A stream guard's promise, beside [`Self::holdback`]: where the prefilter goes through all that waits, it lets that go as
    /// far as the prefilter was in `start` last, finds nothing in it and remembers nothing of it, whatever its config,
    /// whatever was before and whatever follows, provided that it remembered nothing before. The host then need not ask,
    /// which spares most of what a guard costs. [`crate::testing`] asks all the same, and fails where the promise is not kept.
    pub fn prefilter(mut self, prefilter: Prefilter) -> Self {
        self.prefilter = Some(prefilter);
        self
    }

    /// The plugin's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The settings, in the order of declaration.
    pub fn declared_settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Bytes that a stream guard keeps waiting at most, where it promises it.
    pub fn holdback_bytes(&self) -> Option<u32> {
        self.holdback_bytes
    }

    /// Bytes of text that has left that a stream guard sees again, where it says how many.
    pub fn look_behind_bytes(&self) -> Option<u32> {
        self.look_behind_bytes
    }

    /// Text that a stream guard need not be asked about, where it declares that.
    pub fn declared_prefilter(&self) -> Option<&Prefilter> {
        self.prefilter.as_ref()
    }

    /// JSON Schema (2020-12) of the config: a setting without a default is required unless it may be left out, and
    /// no other key is allowed.
    pub fn config_schema(&self) -> String {
        let property = |setting: &Setting| format!("{}:{}", quote(&setting.name), setting.schema());
        let required = self.settings.iter().filter(|s| s.is_required).map(|s| quote(&s.name));
        format!(
            "{{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"type\":\"object\",\
             \"additionalProperties\":false,\"properties\":{{{}}},\"required\":{}}}",
            self.settings.iter().map(property).collect::<Vec<_>>().join(","),
            list(required),
        )
    }

    /// The descriptor as the host reads it.
    pub fn to_json(&self) -> String {
        let named =
            |name: &str, key: &str, text: &str| format!("{{\"name\":{},\"{key}\":{}}}", quote(name), quote(text));
        let bytes = |key: &str, bytes: Option<u32>| bytes.map(|bytes| format!("\"{key}\":{bytes}"));
        let holdback = bytes("holdback-bytes", self.holdback_bytes);
        let look_behind = bytes("look-behind-bytes", self.look_behind_bytes);
        let prefilter = self.prefilter.as_ref().map(|prefilter| format!("\"prefilter\":{}", prefilter.to_json()));
        let stream: Vec<String> = [holdback, look_behind, prefilter].into_iter().flatten().collect();
        let stream = if stream.is_empty() { String::new() } else { format!(",\"stream\":{{{}}}", stream.join(",")) };
        format!(
            "{{\"name\":{},\"version\":{},\"summary\":{},\"config-schema\":{},\"capabilities\":{},\"metrics\":{},\
             \"mutates\":{},\"deterministic\":{}{}}}",
            quote(&self.name),
            quote(&self.version),
            quote(&self.summary),
            self.config_schema(),
            list(self.capabilities.iter().map(|(capability, reason)| named(capability.as_str(), "reason", reason))),
            list(self.metrics.iter().map(|(name, summary)| named(name, "summary", summary))),
            self.mutates,
            self.deterministic,
            stream,
        )
    }
}

/// Text that a stream guard lets through whatever its config, by an automaton: text leaves as far as it was in `start` last,
/// and the guard is asked where a state has none behind it for a character.
///
/// ```
/// use tidegate_plugin_sdk::{Descriptor, Prefilter};
/// let words = Prefilter::new(19)
///     .class("letters", ["az", "AZ", "é"])
///     .class("joins", ["-"])
///     .class("ends", [" ", ",", "\n"])
///     .state("start", &[("letters", "word"), ("ends", "start")])
///     .state("word", &[("letters", "word"), ("joins", "joined"), ("ends", "start")])
///     .state("joined", &[("letters", "word")]);
/// assert_eq!(words.through("The café wa"), Some(10));
/// assert_eq!(words.through("A well-fed cat "), Some(15));
/// assert_eq!(words.through("The cat- "), None);
/// assert_eq!(words.through("The cat 9"), None);
/// Descriptor::new("guard", "0.1.0", "Finds numbers").holdback(19).prefilter(words);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefilter {
    run_bytes: u32,
    classes: Vec<(String, Vec<String>)>,
    states: Vec<(String, Vec<(String, String)>)>,
}

impl Prefilter {
    /// Of text of which at most so many bytes wait for what ends them; no more than the guard withholds.
    pub fn new(run_bytes: u32) -> Self {
        Self { run_bytes, classes: Vec::new(), states: Vec::new() }
    }

    /// A class of characters: each text is one of them, or the first and the last of several. None is listed twice.
    pub fn class<T: Into<String>>(mut self, name: &str, characters: impl IntoIterator<Item = T>) -> Self {
        self.classes.push((name.into(), characters.into_iter().map(Into::into).collect()));
        self
    }

    /// A state: behind a character of a class the next one. There is one with the name `start`.
    pub fn state(mut self, name: &str, next: &[(&str, &str)]) -> Self {
        let next = next.iter().map(|(class, state)| ((*class).into(), (*state).into())).collect();
        self.states.push((name.into(), next));
        self
    }

    /// What a host would refuse in it.
    pub(crate) fn check(&self) -> Result<(), String> {
        let twice = |names: &mut dyn Iterator<Item = &String>| {
            let names: Vec<&String> = names.collect();
            names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)).map(|(_, name)| (*name).clone())
        };
        let again = |name: Option<String>| name.map_or(Ok(()), |name| Err(format!("{name:?} is in it twice")));
        again(twice(&mut self.classes.iter().map(|(name, _)| name)))?;
        again(twice(&mut self.states.iter().map(|(name, _)| name)))?;
        let is_state = |state: &str| self.states.iter().any(|(name, _)| name == state);
        if !is_state("start") {
            return Err("it has no state `start`".into());
        }
        for (class, state) in self.states.iter().flat_map(|(_, next)| next) {
            if !is_state(state) || !self.classes.iter().any(|(name, _)| name == class) {
                return Err(format!("{class:?} to {state:?}: one of them is not declared"));
            }
        }
        self.states.iter().try_for_each(|(_, next)| again(twice(&mut next.iter().map(|(class, _)| class))))?;
        let mut ranges = Vec::new();
        for entry in self.classes.iter().flat_map(|(_, entries)| entries) {
            ranges.push(range(entry).ok_or_else(|| format!("{entry:?} is neither a character nor a range"))?);
        }
        ranges.sort_unstable();
        match ranges.windows(2).find(|two| two[1].0 <= two[0].1) {
            Some(two) => Err(format!("{:?} is in it twice", two[1].0)),
            None => Ok(()),
        }
    }

    /// Bytes of a text that the host lets through without asking; `None` where it asks.
    pub fn through(&self, text: &str) -> Option<usize> {
        let (mut through, mut state) = (0, "start");
        for (at, c) in text.char_indices() {
            let class = self.classes.iter().find(|(_, entries)| entries.iter().any(|entry| has(entry, c)))?;
            let (_, next) = self.states.iter().find(|(name, _)| name == state)?;
            state = &next.iter().find(|(name, _)| *name == class.0)?.1;
            let end = at + c.len_utf8();
            if state == "start" {
                through = end;
            } else if end - through > self.run_bytes as usize {
                return None;
            }
        }
        Some(through)
    }

    fn to_json(&self) -> String {
        let classes = self.classes.iter().map(|(name, entries)| {
            let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
            format!("{}:{}", quote(name), quoted(&entries))
        });
        let states = self.states.iter().map(|(name, next)| {
            let next = next.iter().map(|(class, state)| format!("{}:{}", quote(class), quote(state)));
            format!("{}:{{{}}}", quote(name), next.collect::<Vec<_>>().join(","))
        });
        let [classes, states] = [classes.collect::<Vec<_>>(), states.collect()].map(|parts| parts.join(","));
        format!("{{\"classes\":{{{classes}}},\"states\":{{{states}}},\"run-bytes\":{}}}", self.run_bytes)
    }
}

fn has(entry: &str, c: char) -> bool {
    range(entry).is_some_and(|(from, to)| (from..=to).contains(&c))
}

/// The first and the last character of a class's text. A letter with a mark of its own behind it is two characters and no range.
fn range(entry: &str) -> Option<(char, char)> {
    let mut characters = entry.chars();
    let from = characters.next()?;
    let to = characters.next().unwrap_or(from);
    (from <= to && from.is_ascii() == to.is_ascii() && characters.next().is_none()).then_some((from, to))
}

/// One key of a plugin's config. Shapes and defaults are JSON texts.
#[derive(Clone, Debug)]
pub struct Setting {
    name: String,
    shape: String,
    default: Option<String>,
    is_required: bool,
    summary: String,
}

impl Setting {
    /// A key of any JSON shape: `shape` is a JSON Schema without description and default, `default` a value.
    pub fn new(name: &str, shape: &str, default: &str, summary: &str) -> Self {
        Self::of(name, shape.into(), Some(default.into()), summary)
    }

    /// A key that the operator must give.
    pub fn required(name: &str, shape: &str, summary: &str) -> Self {
        Self { is_required: true, ..Self::of(name, shape.into(), None, summary) }
    }

    /// Yes or no.
    pub fn switch(name: &str, default: bool, summary: &str) -> Self {
        Self::of(name, r#"{"type":"boolean"}"#.into(), Some(default.to_string()), summary)
    }

    /// A whole number within bounds.
    pub fn integer(name: &str, default: u64, min: u64, max: u64, summary: &str) -> Self {
        let shape = format!("{{\"type\":\"integer\",\"minimum\":{min},\"maximum\":{max}}}");
        Self::of(name, shape, Some(default.to_string()), summary)
    }

    /// A text.
    pub fn text(name: &str, default: &str, summary: &str) -> Self {
        Self::of(name, r#"{"type":"string"}"#.into(), Some(quote(default)), summary)
    }

    /// A text that may be left out.
    pub fn optional_text(name: &str, summary: &str) -> Self {
        Self::of(name, r#"{"type":"string"}"#.into(), None, summary)
    }

    /// One of several words.
    pub fn choice(name: &str, words: &[&str], default: &str, summary: &str) -> Self {
        let shape = format!("{{\"type\":\"string\",\"enum\":{}}}", quoted(words));
        Self::of(name, shape, Some(quote(default)), summary)
    }

    /// Several of several words.
    pub fn choices(name: &str, words: &[&str], default: &[&str], summary: &str) -> Self {
        let items = format!("{{\"type\":\"string\",\"enum\":{}}}", quoted(words));
        let shape = format!("{{\"type\":\"array\",\"uniqueItems\":true,\"items\":{items}}}");
        Self::of(name, shape, Some(quoted(default)), summary)
    }

    /// Any number of texts.
    pub fn texts(name: &str, default: &[&str], summary: &str) -> Self {
        Self::of(name, r#"{"type":"array","items":{"type":"string"}}"#.into(), Some(quoted(default)), summary)
    }

    /// The key.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// Its value when the operator gives none, as JSON.
    pub fn default(&self) -> Option<&str> {
        self.default.as_deref()
    }

    fn of(name: &str, shape: String, default: Option<String>, summary: &str) -> Self {
        Self { name: name.into(), shape, default, is_required: false, summary: summary.into() }
    }

    /// The shape with what it says and its default.
    fn schema(&self) -> String {
        let inner = self.shape.trim().trim_start_matches('{');
        let default = self.default.as_ref().map(|default| format!("\"default\":{default},"));
        format!("{{\"description\":{},{}{inner}", quote(&self.summary), default.unwrap_or_default())
    }
}

fn quoted(words: &[&str]) -> String {
    list(words.iter().map(|word| quote(word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_descriptor_says_what_the_contract_asks_for() {
        let descriptor = Descriptor::new("probe", "1.2.3", "A \"probe\"")
            .setting(Setting::choice("mode", &["a", "b"], "a", "Which way"))
            .setting(Setting::integer("depth", 3, 1, 9, "How deep"))
            .setting(Setting::choices("kinds", &["x", "y"], &["y"], "Which"))
            .setting(Setting::required("mount", r#"{"type":"string"}"#, "Where"))
            .needs(Capability::Kv, "keeps its index")
            .metric("hits", "Things found")
            .holdback(64)
            .look_behind(7)
            .prefilter(
                Prefilter::new(9)
                    .class("letters", ["ab", "\""])
                    .class("ends", [" ", "\n"])
                    .state("start", &[("letters", "word"), ("ends", "start")])
                    .state("word", &[("letters", "word")]),
            )
            .mutates();
        let said: Value = serde_json::from_str(&descriptor.to_json()).unwrap();
        let expected = json!({
            "name": "probe",
            "version": "1.2.3",
            "summary": "A \"probe\"",
            "config-schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "mode": {"description": "Which way", "default": "a", "type": "string", "enum": ["a", "b"]},
                    "depth": {"description": "How deep", "default": 3, "type": "integer", "minimum": 1, "maximum": 9},
                    "kinds": {"description": "Which", "default": ["y"], "type": "array", "uniqueItems": true,
                        "items": {"type": "string", "enum": ["x", "y"]}},
                    "mount": {"description": "Where", "type": "string"},
                },
                "required": ["mount"],
            },
            "capabilities": [{"name": "kv", "reason": "keeps its index"}],
            "metrics": [{"name": "hits", "summary": "Things found"}],
            "stream": {
                "holdback-bytes": 64,
                "look-behind-bytes": 7,
                "prefilter": {
                    "classes": {"letters": ["ab", "\""], "ends": [" ", "\n"]},
                    "states": {"start": {"letters": "word", "ends": "start"}, "word": {"letters": "word"}},
                    "run-bytes": 9,
                },
            },
            "mutates": true,
            "deterministic": false,
        });
        assert_eq!(said, expected);
    }
}
