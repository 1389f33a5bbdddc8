//! What a plugin says of itself: name, version, settings with their defaults, and what it needs from the host.
//!
//! The host reads it as JSON, so it can grow. The settings serve three readers from one place: the host checks
//! the operator's config against the schema, the SDK fills in defaults, and a plugin's README test compares. JSON
//! is written as text: a tree of values would be a third of a small plugin's component.

use crate::json::{list, quote};
use crate::plugin::Error;
use crate::prefilter::Prefilter;

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

    /// A stream guard's promise: it never keeps more than this many bytes of a channel waiting. Where the config says how
    /// long that is, such as by its words, promise the longest, and refuse longer ones in `configure`, counted in bytes, as
    /// `word-guard` does. The host's cap is the operator's: servers give 512 bytes unless `limits.holdback_bytes` of the stage
    /// says otherwise. [`crate::testing`] checks that the promise is kept.
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

    /// The names of the metrics, in the order of declaration.
    pub fn declared_metrics(&self) -> impl Iterator<Item = &str> {
        self.metrics.iter().map(|(name, _)| name.as_str())
    }

    /// Whether it asks for a capability.
    pub fn declares(&self, capability: Capability) -> bool {
        self.capabilities.iter().any(|(declared, _)| *declared == capability)
    }

    /// Whether it says that it rewrites prompts or redacts streams.
    pub fn may_mutate(&self) -> bool {
        self.mutates
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

/// Refuses a list with which a plugin would do nothing.
///
/// # Errors
/// [`Error::InvalidConfig`] where the list is empty.
pub fn some_of<T>(name: &str, chosen: &[T]) -> Result<(), Error> {
    if chosen.is_empty() {
        let problem = format!("`{name}` is empty: name one, or leave the key out for the default");
        return Err(Error::InvalidConfig(problem));
    }
    Ok(())
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
        Self::several(name, words, "", default, summary)
    }

    /// One or more of several words. See [`some_of`] for the check that goes with it.
    pub fn some_choices(name: &str, words: &[&str], default: &[&str], summary: &str) -> Self {
        Self::several(name, words, ",\"minItems\":1", default, summary)
    }

    fn several(name: &str, words: &[&str], bound: &str, default: &[&str], summary: &str) -> Self {
        let items = format!("{{\"type\":\"string\",\"enum\":{}}}", quoted(words));
        let shape = format!("{{\"type\":\"array\",\"uniqueItems\":true{bound},\"items\":{items}}}");
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
        let shape = self.shape.trim();
        let inner = shape.strip_prefix('{').and_then(|shape| shape.strip_suffix('}')).unwrap_or(shape).trim();
        let description = format!("\"description\":{}", quote(&self.summary));
        let default = self.default.as_ref().map(|default| format!("\"default\":{default}"));
        let inner = (!inner.is_empty()).then(|| inner.to_owned());
        format!("{{{}}}", [Some(description), default, inner].into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

pub(crate) fn quoted(words: &[&str]) -> String {
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
            .setting(Setting::some_choices("roles", &["x"], &["x"], "Whose"))
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
                    "roles": {"description": "Whose", "default": ["x"], "type": "array", "uniqueItems": true,
                        "minItems": 1, "items": {"type": "string", "enum": ["x"]}},
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

    #[test]
    fn a_setting_may_be_of_any_shape() {
        for shape in ["{}", " { } "] {
            let descriptor = Descriptor::new("probe", "1.2.3", "A probe")
                .setting(Setting::new("any", shape, "[1]", "Anything"))
                .setting(Setting::required("given", shape, "Anything else"));
            let schema: Value = serde_json::from_str(&descriptor.config_schema()).unwrap();
            let expected = json!({
                "any": {"description": "Anything", "default": [1]},
                "given": {"description": "Anything else"},
            });
            assert_eq!(schema["properties"], expected);
        }
    }
}
