//! The fields that chat and legacy completions share.

use crate::field::{Range, boolean, integer, missing, number, object, refuse, short_string, small_integer};
use crate::field::{unsupported, wrong_type};
use crate::json::Node;
use crate::path::Path;
use crate::request::{ParsedRequest, changes_answer};
use serde_json::{Map, Value};
use tidegate_types::{Chat, Reject, Sampling};

/// Model names go into logs, metrics and answers.
pub(crate) const MAX_MODEL_BYTES: usize = 256;
/// To all prompts of a request together.
pub(crate) const MAX_ANSWERS: u32 = 16;
const MAX_STOPS: usize = 4;
const MAX_STOP_BYTES: usize = 256;

/// What was read so far.
#[derive(Default)]
pub(crate) struct Common {
    pub(crate) model: Option<String>,
    pub(crate) sampling: Sampling,
    pub(crate) stop: Vec<String>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) n: Option<u32>,
    pub(crate) stream: bool,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) extra: Map<String, Value>,
}

impl Common {
    /// Takes a field of both endpoints; gives the node back when it is none.
    pub(crate) fn take<'a>(&mut self, key: &str, node: Node<'a>, at: &Path<'_>) -> Result<Option<Node<'a>>, Reject> {
        match key {
            "model" => self.model = Some(short_string(node, at, MAX_MODEL_BYTES)?),
            "stop" => self.stop = read_stop(node, at)?,
            "max_tokens" => self.max_tokens = Some(small_integer(&node, at, 1, u32::MAX)?),
            "n" => self.n = Some(small_integer(&node, at, 1, MAX_ANSWERS)?),
            "stream" => self.stream = boolean(&node, at)?,
            "stream_options" => self.stream_options = Some(read_stream_options(node, at)?),
            _ => return self.take_sampling(key, node, at),
        }
        Ok(None)
    }

    fn take_sampling<'a>(&mut self, key: &str, node: Node<'a>, at: &Path<'_>) -> Result<Option<Node<'a>>, Reject> {
        let penalty = Range::closed(-2.0, 2.0);
        let sampling = &mut self.sampling;
        match key {
            "temperature" => sampling.temperature = Some(number(&node, at, Range::closed(0.0, 2.0))?),
            "top_p" => sampling.top_p = Some(number(&node, at, Range::closed(0.0, 1.0))?),
            // vLLM's clients say "off" as -1, others as 0.
            "top_k" => sampling.top_k = Some(integer(&node, at, -1, i64::from(u32::MAX))?),
            "min_p" => sampling.min_p = Some(number(&node, at, Range::closed(0.0, 1.0))?),
            "presence_penalty" => sampling.presence_penalty = Some(number(&node, at, penalty)?),
            "frequency_penalty" => sampling.frequency_penalty = Some(number(&node, at, penalty)?),
            // Beyond, a logit that is divided by it may leave the range of numbers.
            "repetition_penalty" => sampling.repetition_penalty = Some(number(&node, at, Range::closed(1e-3, 1e3))?),
            // Negative seeds are legal on the wire; the bits are the seed.
            "seed" => sampling.seed = Some(integer(&node, at, i64::MIN, i64::MAX)? as u64),
            "logit_bias" => sampling.logit_bias = read_logit_bias(node, at)?,
            _ => return Ok(Some(node)),
        }
        Ok(None)
    }

    /// Completes `chat` (whose fields of one endpoint are set) with what both share.
    pub(crate) fn finish(self, mut chat: Chat, root: &Path<'_>) -> Result<ParsedRequest, Reject> {
        if self.stream_options.is_some() && !self.stream {
            let at = root.key("stream_options");
            return Err(refuse(&at, "invalid_value", |_| "`stream_options` needs `stream: true`".into()));
        }
        chat.model = self.model.ok_or_else(|| missing(&root.key("model"), "the name of a model"))?;
        chat.stop = self.stop;
        chat.n = self.n.unwrap_or(1);
        chat.stream = self.stream;
        let demanded = self.extra.iter().filter(|(name, value)| changes_answer(name, value));
        chat.demands.extend(demanded.map(|(name, _)| name.clone()));
        chat.extra = self.extra;
        let StreamOptions { include_usage, include_obfuscation } = self.stream_options.unwrap_or_default();
        Ok(ParsedRequest { chat, include_usage, include_obfuscation })
    }
}

fn read_stop(node: Node<'_>, at: &Path<'_>) -> Result<Vec<String>, Reject> {
    let items = match node {
        Node::Str(_) => return Ok(vec![short_string(node, at, MAX_STOP_BYTES)?]),
        Node::List(items) => items,
        other => return Err(wrong_type(at, "a string or a list of strings", &other)),
    };
    if items.len() > MAX_STOPS {
        return Err(refuse(at, "array_above_max_length", |param| {
            format!("`{param}` must have at most {MAX_STOPS} strings, not {}", items.len())
        }));
    }
    items.into_iter().enumerate().map(|(i, item)| short_string(item, &at.index(i), MAX_STOP_BYTES)).collect()
}

/// What a caller wants of a stream.
#[derive(Clone, Copy, Default)]
pub(crate) struct StreamOptions {
    include_usage: bool,
    include_obfuscation: Option<bool>,
}

fn read_stream_options(node: Node<'_>, at: &Path<'_>) -> Result<StreamOptions, Reject> {
    let mut options = StreamOptions::default();
    for (key, node) in object(node, at)? {
        let at = at.key(&key);
        match (key.as_ref(), &node) {
            (_, Node::Null) => {}
            ("include_usage", node) => options.include_usage = boolean(node, &at)?,
            ("include_obfuscation", node) => options.include_obfuscation = Some(boolean(node, &at)?),
            _ => {
                return Err(unsupported(
                    &at,
                    "`include_usage` and `include_obfuscation` are the only options; leave this out",
                ));
            }
        }
    }
    Ok(options)
}

/// OpenAI's bound; more than that is a vocabulary, not a bias.
const MAX_BIASES: usize = 300;

fn read_logit_bias(node: Node<'_>, at: &Path<'_>) -> Result<Vec<(u32, f32)>, Reject> {
    let entries = object(node, at)?;
    if entries.len() > MAX_BIASES {
        return Err(refuse(at, "object_above_max_properties", |param| {
            format!("`{param}` must have at most {MAX_BIASES} entries, not {}", entries.len())
        }));
    }
    let mut biases = Vec::with_capacity(entries.len());
    for (key, node) in entries {
        let at = at.key(&key);
        let token: u32 = key.parse().map_err(|_| {
            refuse(&at, "invalid_value", |param| format!("the key of `{param}` must be a token id, a whole number"))
        })?;
        if biases.iter().any(|(known, _)| *known == token) {
            return Err(refuse(&at, "invalid_value", |param| {
                format!("`{param}` gives the token {token} a second bias")
            }));
        }
        biases.push((token, number(&node, &at, Range::closed(-100.0, 100.0))?));
    }
    Ok(biases)
}
