//! `tests.toml`: what a plugin's world answers, and what the plugin must then do. A case asks one function of one
//! stage; cases run in order, in one tenant, so that what one keeps the next one finds. Unknown keys are errors.

use crate::config::GrantsConfig;
use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fixtures {
    /// The plugin's config, for cases without one of their own.
    pub config: toml::Table,
    /// As in `[pipeline.stage.grants]`.
    pub grants: GrantsConfig,
    /// What the host answers.
    pub host: HostScript,
    /// What is asked.
    pub case: Vec<Case>,
}

/// `[host]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostScript {
    /// The clock, which stands still.
    pub now_unix_ms: u64,
    /// Of `random`.
    pub seed: u64,
    /// What is stored before the first case.
    pub kv: BTreeMap<String, String>,
    /// Answers to requests.
    pub http: Vec<HttpAnswer>,
    /// Answers of models.
    pub models: Vec<ModelAnswer>,
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
    /// The answer's status.
    #[serde(default = "ok")]
    pub status: u16,
    /// The answer's body.
    #[serde(default)]
    pub body: String,
    /// `timeout` or `unavailable` in place of an answer.
    pub error: Option<String>,
}

fn ok() -> u16 {
    200
}

/// `[[host.models]]`: the first that fits a question answers it; without one, the question fails.
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
}

/// `[[case]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// A sentence of behaviour.
    pub name: String,
    /// A config of its own.
    pub config: Option<toml::Table>,
    /// The question.
    pub ask: Ask,
    /// Keys of the outcome and their values; what is not named may be anything.
    pub expect: Map<String, Value>,
}

/// `ask.KIND`: one function of a stage.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ask {
    /// `prompt-guard`: outcome `action`, `text`, `code`, `message`, `findings`.
    Prompt(Said),
    /// `output-guard`: the same, of one answer.
    Output(String),
    /// `stream-guard`: outcome `text`, `halted`, `findings`; in every chunking.
    Stream(Stream),
    /// `router`: outcome `order`, `reason`.
    Route(Route),
    /// `tool-provider`: outcome `content`, `is_error`, `structured`, `tools`.
    Tool(Tool),
    /// `retriever`: outcome `ids`, `texts`.
    Retrieve(String),
    /// `memory.remember`, of user and assistant in turn: outcome `ids`, `texts`.
    Remember(Vec<String>),
    /// `memory.recall`: outcome `ids`, `texts`.
    Recall(String),
    /// `memory.forget`: outcome `count`.
    Forget(Vec<String>),
    /// `observer`, of a request with this outcome: outcome `seen`.
    Observe(String),
}

/// A prompt: the user's words, or whole messages.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Said {
    /// One message of the user.
    Text(String),
    /// A conversation.
    Messages(Vec<SaidMessage>),
}

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaidMessage {
    /// `system`, `user`, `assistant`, ...
    pub role: tidegate_types::Role,
    /// What it says.
    pub text: String,
}

/// Generated text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Stream {
    /// Of the answer.
    Text(String),
    /// Of another channel.
    Of {
        /// `text`, `reasoning`, `refusal` or `tool-arguments`.
        channel: String,
        /// What is generated.
        text: String,
    },
}

/// A choice of model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// What the user says.
    pub prompt: String,
    /// Its estimated tokens.
    #[serde(default)]
    pub tokens: u32,
    /// What may be chosen.
    pub candidates: Vec<RouteCandidate>,
}

/// A model that may be chosen.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteCandidate {
    /// Its id and name.
    pub id: String,
    /// Its window, in tokens.
    #[serde(default)]
    pub context: u32,
    /// Whether it answers.
    #[serde(default = "yes")]
    pub healthy: bool,
}

fn yes() -> bool {
    true
}

/// A tool call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// The tool.
    pub name: String,
    /// Its arguments.
    #[serde(default)]
    pub arguments: Map<String, Value>,
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
        Ok(fixtures)
    }
}
