//! `[[models]]`: what answers, here or elsewhere.

use super::{AdmissionConfig, PriceConfig, UpstreamBreakerConfig, UpstreamRetryConfig, quota};
use anyhow::{Context, bail};
use serde::Deserialize;
use std::path::PathBuf;
use tidegate_text::{TextOverrides, ToolFormat};
use tidegate_types::Quota;
use tidegate_upstream::{MAX_SERVERS, RequestOptions, TokenBound};

/// `[[models]]`: a folder for the own engine, or an upstream.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The name that callers use.
    pub name: String,
    /// A Hugging Face folder; `"bundled"` is the starter model.
    pub path: Option<PathBuf>,
    /// Base URL of an OpenAI-compatible server, such as `http://127.0.0.1:8000/v1`.
    pub upstream: Option<String>,
    /// Several of them that answer alike, in place of `upstream`.
    #[serde(default)]
    pub upstreams: Vec<String>,
    /// The model's name there; default: `name`.
    pub upstream_model: Option<String>,
    /// Environment variable that holds the upstream's API key.
    pub api_key_env: Option<String>,
    /// The field that bounds what is generated there; default: `max_tokens`.
    pub token_bound: Option<TokenBound>,
    /// Whether what the model reasoned earlier is sent there; default: true.
    pub send_reasoning: Option<bool>,
    /// When what fails there is sent again.
    pub retry: Option<UpstreamRetryConfig>,
    /// When a server there is left alone for a while.
    pub breaker: Option<UpstreamBreakerConfig>,
    /// Models of this config that are asked in this order where this one cannot begin an answer.
    #[serde(default)]
    pub fallbacks: Vec<String>,
    /// How an own model writes tool calls; default: as its chat template shows.
    pub tool_format: Option<ToolFormat>,
    /// A Jinja file in place of the chat template in an own model's folder.
    pub chat_template: Option<PathBuf>,
    /// Prompt plus answer, in tokens; for an own model at most what it was made for.
    pub context_tokens: Option<u32>,
    /// What it costs; absent means nothing.
    pub price: Option<PriceConfig>,
    /// How much all its callers together may ask for.
    #[serde(default)]
    pub limits: Quota,
}

impl ModelConfig {
    /// A folder under a name.
    pub fn folder(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            path: Some(path.into()),
            upstream: None,
            upstreams: Vec::new(),
            upstream_model: None,
            api_key_env: None,
            token_bound: None,
            send_reasoning: None,
            retry: None,
            breaker: None,
            fallbacks: Vec::new(),
            tool_format: None,
            chat_template: None,
            context_tokens: None,
            price: None,
            limits: Quota::default(),
        }
    }

    pub(super) fn check(&self, all: &AdmissionConfig) -> anyhow::Result<()> {
        let name = &self.name;
        if self.context_tokens == Some(0) {
            bail!("model `{name}`: `context_tokens` is 0; leave it out for what the model was made for");
        }
        quota::check(&self.limits, all).with_context(|| format!("model `{name}`: limits"))?;
        if self.limits.max_context_tokens.is_some() {
            bail!("model `{name}`: `max_context_tokens` is for callers; write `context_tokens`, beside `limits`");
        }
        let remote = self.upstream_model.is_some()
            || self.api_key_env.is_some()
            || self.token_bound.is_some()
            || self.send_reasoning.is_some()
            || self.retry.is_some()
            || self.breaker.is_some();
        if self.path.is_none() && (self.tool_format.is_some() || self.chat_template.is_some()) {
            bail!(
                "model `{name}`: `tool_format` and `chat_template` go with `path`; what a model elsewhere reads and writes is \
                 its own server's to say"
            );
        }
        match (&self.path, &self.upstream, &self.upstreams[..]) {
            (None, None, []) => {
                bail!("model `{name}` needs `path` (a folder), `upstream` (a URL) or `upstreams` (several)")
            }
            (Some(_), Some(_), _) => bail!("model `{name}` has both `path` and `upstream`; keep one"),
            (Some(_), None, [_, ..]) => bail!("model `{name}` has both `path` and `upstreams`; keep one"),
            (None, Some(_), [_, ..]) => bail!("model `{name}` has both `upstream` and `upstreams`; keep one"),
            (Some(_), None, []) if remote => bail!(
                "model `{name}`: `upstream_model`, `api_key_env`, `token_bound`, `send_reasoning`, `retry` and \
                 `breaker` go with `upstream`, not with `path`"
            ),
            _ => self.check_upstreams().with_context(|| format!("model `{name}`")),
        }
    }

    fn check_upstreams(&self) -> anyhow::Result<()> {
        if self.upstreams.len() > MAX_SERVERS {
            bail!("it has {} upstreams; the most is {MAX_SERVERS}", self.upstreams.len());
        }
        for (i, url) in self.upstreams.iter().enumerate() {
            let same = |other: &String| other.trim_end_matches('/') == url.trim_end_matches('/');
            if self.upstreams[..i].iter().any(same) {
                bail!("it names {url} twice");
            }
        }
        self.breaker.as_ref().map_or(Ok(()), UpstreamBreakerConfig::check)?;
        self.retry.as_ref().map_or(Ok(()), UpstreamRetryConfig::check)
    }

    pub(super) fn check_fallbacks(&self, models: &[&str]) -> anyhow::Result<()> {
        let name = &self.name;
        for fallback in &self.fallbacks {
            if fallback == name {
                bail!("model `{name}` falls back to itself");
            }
            if !models.contains(&fallback.as_str()) {
                bail!("model `{name}` falls back to `{fallback}`, which is no model; there are: {}", models.join(", "));
            }
        }
        Ok(())
    }

    /// What counts in place of what an own model's folder says of text.
    pub(crate) fn text_overrides(&self) -> TextOverrides {
        TextOverrides { tool_format: self.tool_format, chat_template: self.chat_template.clone() }
    }

    /// How its servers want to be asked.
    pub(crate) fn request_options(&self) -> RequestOptions {
        let default = RequestOptions::default();
        RequestOptions {
            token_bound: self.token_bound.unwrap_or(default.token_bound),
            send_reasoning: self.send_reasoning.unwrap_or(default.send_reasoning),
        }
    }

    /// The URLs of its servers; none for a model of the own engine.
    pub(crate) fn urls(&self) -> Vec<&str> {
        self.upstream.iter().chain(&self.upstreams).map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use tidegate_text::{TextOverrides, ToolFormat};
    use tidegate_upstream::{RequestOptions, TokenBound};

    #[test]
    fn a_model_has_a_folder_or_an_upstream() {
        let why = |more: &str| Config::parse(&format!("[[models]]\nname = \"m\"\n{more}")).unwrap_err().to_string();
        assert!(why("").contains("needs `path`"));
        assert!(why("path = \"a\"\nupstream = \"http://b\"").contains("both"));
    }

    #[test]
    fn how_servers_are_asked_is_written_beside_where_they_are() {
        let parse = |more: &str| Config::parse(&format!("[[models]]\nname = \"m\"\n{more}"));
        let options = |more: &str| {
            let config = parse(&format!("upstream = \"http://b\"\n{more}")).unwrap();
            config.models[0].request_options()
        };
        assert_eq!(options(""), RequestOptions::default());
        let expected = RequestOptions { token_bound: TokenBound::MaxCompletionTokens, send_reasoning: false };
        assert_eq!(options("token_bound = \"max_completion_tokens\"\nsend_reasoning = false"), expected);
        assert!(parse("upstream = \"http://b\"\ntoken_bound = \"tokens\"").is_err());
        for key in ["token_bound = \"max_tokens\"", "send_reasoning = true"] {
            let why = parse(&format!("path = \"a\"\n{key}")).unwrap_err().to_string();
            assert!(why.contains("go with `upstream`"), "{why}");
        }
    }
    #[test]
    fn what_a_model_writes_is_said_of_own_models_alone() {
        let parse = |more: &str| Config::parse(&format!("[[models]]\nname = \"m\"\n{more}"));
        let own = parse("path = \"a\"\ntool_format = \"llama-json\"\nchat_template = \"b.jinja\"").unwrap();
        let expected =
            TextOverrides { tool_format: Some(ToolFormat::LlamaJson), chat_template: Some("b.jinja".into()) };
        assert_eq!(own.models[0].text_overrides(), expected);
        for key in ["tool_format = \"hermes\"", "chat_template = \"b.jinja\""] {
            let why = parse(&format!("upstream = \"http://b\"\n{key}")).unwrap_err().to_string();
            assert!(why.contains("model `m`") && why.contains("go with `path`"), "{why}");
        }
    }

    #[test]
    fn a_tool_format_that_is_none_names_the_nearest_or_all() {
        let why = |format: &str| {
            let text = format!("[[models]]\nname = \"m\"\npath = \"a\"\ntool_format = \"{format}\"");
            Config::parse(&text).unwrap_err().to_string()
        };
        for (format, nearest) in [("llama3_json", "llama-json"), ("Hermes", "hermes"), ("mistrall", "mistral")] {
            let why = why(format);
            assert!(why.contains(&format!("did you mean `{nearest}`?")) && why.contains("line 4"), "{why}");
        }
        let why = why("pythonic");
        assert!(!why.contains("did you mean") && why.contains("`none`, `hermes`, `llama-json`, `mistral`"), "{why}");
    }
}
