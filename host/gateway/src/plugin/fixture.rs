//! `tests.toml`: what a plugin's world answers, and what the plugin must then do. A case asks one function of one
//! stage; cases run in order, in one tenant, so that what one keeps the next one finds. Unknown keys are errors.
//! Read next: `fixture/ask.rs` for what a case may ask, `fixture/messages.rs` and `fixture/kept.rs` for how it writes that.

mod ask;
mod kept;
mod messages;

pub use ask::{Ask, MODEL, Output, Prompt, Route, Stream, Told, Tool};
pub use kept::{Exchange, Question};

use crate::config::{GrantsConfig, LimitsConfig};
use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_sandbox::capability::{VectorEntry, check_kv_key};

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fixtures {
    /// The plugin's config, for cases without one of their own.
    pub config: toml::Table,
    /// As in `[pipeline.stage.grants]`.
    pub grants: GrantsConfig,
    /// As in `[pipeline.stage.limits]`.
    pub limits: LimitsConfig,
    /// What the host answers.
    pub host: HostScript,
    /// What is asked.
    pub case: Vec<Case>,
    /// The plugin's name: in front of what it stores, and in what is said of it.
    #[serde(skip)]
    pub plugin: Option<String>,
}

impl Fixtures {
    /// The plugin's name, if nobody named it, is that.
    pub(super) fn plugin(&self) -> &str {
        self.plugin.as_deref().unwrap_or("plugin")
    }
}

/// `[host]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostScript {
    /// The clock, which stands still but for what cases say.
    pub now_unix_ms: u64,
    /// Of `random`.
    pub seed: u64,
    /// Values of secrets that are granted; of one that is not here, `test-NAME`.
    pub secrets: BTreeMap<String, String>,
    /// What is stored before the first case.
    pub kv: BTreeMap<String, String>,
    /// Answers to requests.
    pub http: Vec<HttpAnswer>,
    /// Answers of models.
    pub models: Vec<ModelAnswer>,
    /// Entries of collections before the first case.
    pub vectors: Vec<Entry>,
}

/// `[[host.http]]`: the first that fits a request answers it; without one, the request fails.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpAnswer {
    /// The request's URL, whole.
    pub url: String,
    /// The request's method; any where absent.
    pub method: Option<String>,
    /// Text that the request's body holds; any where absent.
    pub body_has: Option<String>,
    /// Headers that the request has, and text that each holds.
    #[serde(default)]
    pub headers_have: BTreeMap<String, String>,
    /// So many requests are answered by it, and those after them by others; all where absent.
    pub times: Option<u32>,
    /// The answer's status.
    #[serde(default = "ok")]
    pub status: u16,
    /// The answer's headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The answer's body.
    #[serde(default)]
    pub body: String,
    /// In place of an answer.
    pub error: Option<ScriptedError>,
}

/// How a request or a question fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScriptedError {
    /// No answer in time.
    Timeout,
    /// Nobody who answers.
    Unavailable,
    /// A grant that is missing or used up.
    Denied,
    /// Not something that who is asked does.
    Unsupported,
    /// Something that cannot be asked.
    InvalidInput,
}

fn ok() -> u16 {
    200
}

/// `[[host.models]]`: the first that fits a question and answers such a one; without one, the question fails.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelAnswer {
    /// The model's name, to which the grant maps an alias.
    pub model: String,
    /// Text that the question holds; any where absent.
    pub has: Option<String>,
    /// What `complete` says.
    pub text: Option<String>,
    /// What `embed` answers for a text.
    pub vector: Option<Vec<f32>>,
    /// What `classify` answers for a text.
    pub labels: Option<BTreeMap<String, f32>>,
    /// In place of any answer.
    pub error: Option<ScriptedError>,
}

/// `[[host.vectors]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The collection that it is in; the grant says what the plugin may do there.
    pub collection: String,
    /// Its id there.
    pub id: String,
    /// Its vector; all of a collection that are to be found together are of one length.
    pub vector: Vec<f32>,
    /// What is kept with it.
    #[serde(default)]
    pub payload: Map<String, Value>,
}

/// `[[case]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// A sentence of behaviour.
    pub name: String,
    /// A config of its own.
    pub config: Option<toml::Table>,
    /// What has passed on the clock since the case before; what is kept in `kv` for a time is over by it, too.
    #[serde(default)]
    pub advance_ms: u64,
    /// The question.
    pub ask: Ask,
    /// Keys of the outcome and their values; what is not named may be anything.
    pub expect: Map<String, Value>,
}

impl Fixtures {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    /// Parses and checks the text of a file.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let fixtures: Self = toml::from_str(text)?;
        if fixtures.case.is_empty() {
            bail!("there is no [[case]]; name one, with `ask` and `expect`");
        }
        if let Some(case) = fixtures.case.iter().find(|case| case.expect.is_empty()) {
            bail!("the case `{}` expects nothing; name what must come out in `expect`", case.name);
        }
        fixtures.case.iter().try_for_each(Case::check)?;
        fixtures.grants.check(fixtures.limits.to_limits().output_bytes).context("[grants]")?;
        fixtures.host.check(&fixtures.grants).context("[host]")?;
        Ok(fixtures)
    }
}

impl Case {
    /// Refuses what no outcome has, which would be an expectation of nothing.
    fn check(&self) -> anyhow::Result<()> {
        let known = self.ask.outcome();
        let unknown = self.expect.keys().find(|key| *key != "error" && !known.contains(&key.as_str()));
        if let Some(key) = unknown {
            let (name, key, kind) = (self.name.escape_debug(), key.escape_debug(), self.ask.kind().as_str());
            bail!("the case `{name}` expects `{key}`; the outcome of a {kind} has error, {}", known.join(", "));
        }
        Ok(())
    }
}

impl HostScript {
    /// Refuses what no server would hold: what the plugin could not have stored itself, or is not granted.
    fn check(&self, grants: &GrantsConfig) -> anyhow::Result<()> {
        for key in self.kv.keys() {
            check_kv_key(key).with_context(|| format!("kv: `{}`", key.escape_debug()))?;
        }
        for entry in &self.vectors {
            entry.stored().check().with_context(|| format!("vectors: `{}`", entry.id.escape_debug()))?;
            let collection = entry.collection.as_str();
            ensure!(
                grants.vectors.contains_key(collection),
                "vectors: `{}` is in a collection that is not granted; add `vectors = {{ {collection} = \"read\" }}` to \
                 [grants]",
                entry.id
            );
        }
        ensure!(self.kv.is_empty() || grants.kv_kib.is_some(), "kv: it is not granted; add `kv_kib = 64` to [grants]");
        if let Some(name) = self.secrets.keys().find(|name| !grants.secrets.contains_key(*name)) {
            bail!("secrets: `{name}` is not granted; add `secrets = {{ {name} = \"VARIABLE\" }}` to [grants]");
        }
        Ok(())
    }

    /// The value of a secret.
    pub(super) fn secret(&self, name: &str) -> String {
        self.secrets.get(name).cloned().unwrap_or_else(|| format!("test-{name}"))
    }
}

impl Entry {
    /// As it is stored.
    pub(super) fn stored(&self) -> VectorEntry {
        VectorEntry { id: self.id.clone(), vector: self.vector.clone(), payload: attrs(&self.payload) }
    }
}

/// Keys and values as plugins get them: each value as JSON.
pub(super) fn attrs(attrs: &Map<String, Value>) -> Vec<(String, String)> {
    attrs.iter().map(|(key, value)| (key.clone(), value.to_string())).collect()
}

/// The same of what a case says there and, where it does not, of what a server always says.
pub(super) fn with_defaults<const N: usize>(
    mut said: Map<String, Value>,
    defaults: [(&str, Value); N],
) -> Vec<(String, String)> {
    for (key, value) in defaults {
        said.entry(key).or_insert(value);
    }
    attrs(&said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(case: &str) -> String {
        format!(
            "{:#}",
            Fixtures::parse(&format!("[[case]]\nname = \"a\"\nexpect.error = \"x\"\n{case}\n")).unwrap_err()
        )
    }

    #[test]
    fn an_unknown_key_or_word_is_an_error_wherever_it_stands() {
        for (case, named) in [
            ("ask.prompt = { messages = \"a\", oops = 1 }", "ask.prompt"),
            ("ask.prompt = [{ role = \"user\", text = \"a\", oops = 1 }]", "ask.prompt"),
            ("ask.prompt = { messages = \"a\", tools = [{ name = \"t\", oops = 1 }] }", "ask.prompt"),
            ("ask.output = { text = \"a\", oops = 1 }", "ask.output"),
            ("ask.stream = { channel = \"text\", text = \"a\", oops = 1 }", "ask.stream"),
            ("ask.stream = { channel = \"body\", text = \"a\" }", "tool-arguments"),
            ("ask.route = { prompt = \"a\", candidates = [{ id = \"m\", oops = 1 }] }", "oops"),
            ("ask.route = { prompt = \"a\", candidates = [], findings = [{ category = \"a:b\", oops = 1 }] }", "oops"),
            ("ask.tool = { name = \"t\", oops = 1 }", "oops"),
            ("ask.observe = { outcome = \"answered\", oops = 1 }", "ask.observe"),
            (
                "ask.observe = \"answerd\"",
                "`outcome` is \"answerd\"; a server says answered, failed, refused, client-gone",
            ),
            ("ask.output = { text = \"a\", finish_reason = \"toolcalls\" }", "`finish_reason` is \"toolcalls\""),
            ("ask.recall = \"a\"\noops = 1", "oops"),
            ("ask.recall = \"a\"\n[[host.vectors]]\ncollection = \"c\"\nid = \"a\"\nvector = [1]\noops = 1", "oops"),
        ] {
            let said = refused(case);
            assert!(said.contains(named), "{case}: {said}");
        }
    }

    #[test]
    fn the_guide_shows_a_file_that_is_read() {
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plugins.md");
        let guide = std::fs::read_to_string(guide).unwrap();
        let shown = guide.split("```toml\n").find(|block| block.contains("[[case]]")).unwrap();
        let fixtures = Fixtures::parse(shown.split("```").next().unwrap()).unwrap();
        assert_eq!((fixtures.case.len(), fixtures.host.http.len(), fixtures.host.vectors.len()), (2, 2, 1));
    }

    #[test]
    fn an_error_that_no_host_gives_is_refused() {
        for of in ["http]]\nurl = \"https://a.example\"", "models]]\nmodel = \"m\""] {
            let with = |error: &str| format!("ask.recall = \"a\"\n[[host.{of}\nerror = \"{error}\"");
            let said = refused(&with("timeuot"));
            let all = ["timeout", "unavailable", "denied", "unsupported", "invalid-input"];
            let listed = all.map(|error| format!("`{error}`")).join(", ");
            assert!(said.contains("timeuot") && said.contains(&listed), "{said}");
            for error in all {
                let case = format!("[[case]]\nname = \"a\"\nexpect.error = \"x\"\n{}\n", with(error));
                assert!(Fixtures::parse(&case).is_ok(), "{case}");
            }
        }
    }

    #[test]
    fn grants_that_a_server_refuses_are_refused() {
        let http = |kib| format!("ask.recall = \"a\"\n[grants.http]\norigins = []\nrequest_kib = {kib}");
        let said = refused(&http(4096));
        assert!(said.contains("[grants]") && said.contains("http.request_kib is 4096"), "{said}");
    }

    #[test]
    fn what_would_be_lost_of_what_a_tool_says_is_refused() {
        for more in ["reasoning = \"x\"", "refusal = \"x\"", "tool_calls = [{ id = \"d\", name = \"f\" }]"] {
            let said = |call_id: &str| format!("ask.prompt = [{{ role = \"tool\", {call_id} text = \"ok\", {more} }}]");
            let why = refused(&said("call_id = \"c\","));
            assert!(why.contains("`ask.prompt` is"), "{more}: {why}");
            let whole = format!("[[case]]\nname = \"a\"\nexpect.error = \"x\"\n{}\n", said(""));
            assert!(Fixtures::parse(&whole).is_ok(), "{more}");
        }
    }

    #[test]
    fn what_no_passage_has_is_refused() {
        let said = |more: &str| format!("ask.prompt = [{{ text = \"ok\", id = \"c0\", title = \"t\", {more} }}]");
        let passage = |more: &str| said(&format!("source = \"notes\", {more}"));
        for case in [
            said("role = \"user\""),
            passage("role = \"system\""),
            passage("role = \"user\", call_id = \"c\""),
            passage("role = \"user\", reasoning = \"x\""),
        ] {
            let why = refused(&case);
            assert!(why.contains("`id`, `uri` and `title` with `source`"), "{case}: {why}");
        }
        let whole = format!("[[case]]\nname = \"a\"\nexpect.error = \"x\"\n{}\n", passage("role = \"user\""));
        assert!(Fixtures::parse(&whole).is_ok());
    }

    #[test]
    fn what_no_server_would_hold_is_refused() {
        let vector = |id: &str, vector: &str, grants: &str| {
            format!(
                "ask.recall = \"a\"\n[grants]\n{grants}\n[[host.vectors]]\ncollection = \"c\"\nid = \"{id}\"\n\
                 vector = {vector}"
            )
        };
        let granted = "vectors = { c = \"read\" }";
        let long = "x".repeat(513);
        let kv =
            |key: &str, grants: &str| format!("ask.recall = \"a\"\n[grants]\n{grants}\n[host.kv]\n\"{key}\" = \"v\"");
        for (case, why) in [
            (vector("a", "[1]", ""), "add `vectors = { c = \"read\" }` to [grants]"),
            (vector("a", "[1, nan]", granted), "finite numbers"),
            (vector("a", "[1, inf]", granted), "finite numbers"),
            (vector(&long, "[1]", granted), "an id has 1 to 512 bytes"),
            (vector("", "[1]", granted), "an id has 1 to 512 bytes"),
            (kv("k", ""), "add `kv_kib = 64` to [grants]"),
            (kv("", "kv_kib = 1"), "keys have 1 to 512"),
            (kv(&long, "kv_kib = 1"), "keys have 1 to 512"),
        ] {
            let said = refused(&case);
            assert!(said.contains("[host]: ") && said.contains(why), "{case}: {said}");
        }
    }

    #[test]
    fn a_vector_of_no_direction_is_refused() {
        for vector in ["[]", "[0, 0.0]"] {
            let said = refused(&format!(
                "ask.recall = \"a\"\n[[host.vectors]]\ncollection = \"c\"\nid = \"far\"\nvector = {vector}"
            ));
            assert!(said.contains("`far`"), "{said}");
        }
    }
}
