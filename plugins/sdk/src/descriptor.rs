//! What a plugin says of itself: name, version, settings with their defaults, and what it needs from the host.
//!
//! The host reads it as JSON, so it can grow. The settings serve three readers from one place: the host checks
//! the operator's config against the schema, the SDK fills in defaults, and a plugin's README test compares.

use serde_json::{Map, Value, json};

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
}

impl Capability {
    /// The name in the contract and in the operator's grants.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Documents => "documents",
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

    /// Declares a metric and what it counts; the host refuses undeclared ones.
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
    /// its own; [`crate::testing`] checks that the promise is kept.
    pub fn holdback(mut self, bytes: u32) -> Self {
        self.holdback_bytes = Some(bytes);
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

    pub(crate) fn declares(&self, key: &str) -> bool {
        self.settings.iter().any(|s| s.name == key)
    }

    pub(crate) fn defaults(&self) -> Map<String, Value> {
        let with_default = self.settings.iter().filter_map(|s| Some((s.name.clone(), s.default.clone()?)));
        with_default.collect()
    }

    /// JSON Schema (2020-12) of the config: every key is optional unless it has no default and is required,
    /// and no other key is allowed.
    pub fn config_schema(&self) -> Value {
        let properties: Map<String, Value> = self.settings.iter().map(|s| (s.name.clone(), s.schema())).collect();
        let required: Vec<&str> = self.settings.iter().filter(|s| s.required).map(|s| s.name.as_str()).collect();
        let mut schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "additionalProperties": false,
            "properties": properties,
        });
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    }

    /// The descriptor as the host reads it.
    pub fn to_json(&self) -> String {
        let capability = |(c, reason): &(Capability, String)| json!({"name": c.as_str(), "reason": reason});
        let metric = |(name, summary): &(String, String)| json!({"name": name, "summary": summary});
        let descriptor = json!({
            "name": self.name,
            "version": self.version,
            "summary": self.summary,
            "config-schema": self.config_schema(),
            "capabilities": self.capabilities.iter().map(capability).collect::<Vec<_>>(),
            "metrics": self.metrics.iter().map(metric).collect::<Vec<_>>(),
            "mutates": self.mutates,
            "deterministic": self.deterministic,
        });
        descriptor.to_string()
    }
}

/// One key of a plugin's config.
#[derive(Clone, Debug)]
pub struct Setting {
    name: String,
    shape: Value,
    default: Option<Value>,
    required: bool,
    summary: String,
}

impl Setting {
    /// A key of any JSON shape; `shape` is its JSON Schema without description and default.
    pub fn new(name: &str, shape: Value, default: Value, summary: &str) -> Self {
        Self { name: name.into(), shape, default: Some(default), required: false, summary: summary.into() }
    }

    /// A key that the operator must give.
    pub fn required(name: &str, shape: Value, summary: &str) -> Self {
        Self { name: name.into(), shape, default: None, required: true, summary: summary.into() }
    }

    /// Yes or no.
    pub fn switch(name: &str, default: bool, summary: &str) -> Self {
        Self::new(name, json!({"type": "boolean"}), json!(default), summary)
    }

    /// A whole number within bounds.
    pub fn integer(name: &str, default: u64, min: u64, max: u64, summary: &str) -> Self {
        let shape = json!({"type": "integer", "minimum": min, "maximum": max});
        Self::new(name, shape, json!(default), summary)
    }

    /// A text.
    pub fn text(name: &str, default: &str, summary: &str) -> Self {
        Self::new(name, json!({"type": "string"}), json!(default), summary)
    }

    /// A text that may be left out.
    pub fn optional_text(name: &str, summary: &str) -> Self {
        let shape = json!({"type": "string"});
        Self { name: name.into(), shape, default: None, required: false, summary: summary.into() }
    }

    /// One of several words.
    pub fn choice(name: &str, words: &[&str], default: &str, summary: &str) -> Self {
        Self::new(name, json!({"type": "string", "enum": words}), json!(default), summary)
    }

    /// Several of several words.
    pub fn choices(name: &str, words: &[&str], default: &[&str], summary: &str) -> Self {
        let shape = json!({"type": "array", "uniqueItems": true, "items": {"type": "string", "enum": words}});
        Self::new(name, shape, json!(default), summary)
    }

    /// Any number of texts.
    pub fn texts(name: &str, default: &[&str], summary: &str) -> Self {
        Self::new(name, json!({"type": "array", "items": {"type": "string"}}), json!(default), summary)
    }

    /// The key.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// Its value when the operator gives none.
    pub fn default(&self) -> Option<&Value> {
        self.default.as_ref()
    }

    fn schema(&self) -> Value {
        let mut schema = self.shape.clone();
        schema["description"] = json!(self.summary);
        if let Some(default) = &self.default {
            schema["default"] = default.clone();
        }
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_says_what_the_contract_asks_for() {
        let descriptor = Descriptor::new("probe", "1.2.3", "A probe")
            .setting(Setting::choice("mode", &["a", "b"], "a", "Which way"))
            .setting(Setting::required("mount", json!({"type": "string"}), "Where"))
            .needs(Capability::Kv, "keeps its index")
            .metric("hits", "what was hit")
            .mutates();
        let said: Value = serde_json::from_str(&descriptor.to_json()).unwrap();
        assert_eq!(said["name"], "probe");
        assert_eq!(said["version"], "1.2.3");
        assert_eq!(said["config-schema"]["additionalProperties"], false);
        assert_eq!(said["config-schema"]["properties"]["mode"]["enum"], json!(["a", "b"]));
        assert_eq!(said["config-schema"]["properties"]["mode"]["default"], "a");
        assert_eq!(said["config-schema"]["required"], json!(["mount"]));
        assert_eq!(said["capabilities"], json!([{"name": "kv", "reason": "keeps its index"}]));
        assert_eq!(said["metrics"], json!([{"name": "hits", "summary": "what was hit"}]));
        assert_eq!((&said["mutates"], &said["deterministic"]), (&json!(true), &json!(false)));
    }
}
