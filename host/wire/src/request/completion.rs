//! `POST /v1/completions`: one raw prompt. It becomes a `Chat` of one user message with `Form::Completion`.

use crate::field::{boolean, missing, object, refuse, small_integer, unsupported, wrong_type};
use crate::json::{Node, parse};
use crate::path::Path;
use crate::request::common::Common;
use crate::request::{ParsedRequest, alike, extra, not_an_object};
use tidegate_types::{Chat, FieldNames, Form, Message, Reject, Role};

/// OpenAI's default for this endpoint when the caller names no bound.
const DEFAULT_MAX_TOKENS: u32 = 16;
const MAX_LOGPROBS: u32 = 5;

#[derive(Default)]
struct CompletionDraft {
    common: Common,
    prompt: Option<String>,
    echo: bool,
    logprobs: Option<u8>,
    best_of: Option<u32>,
}

/// Reads the body of `POST /v1/completions`.
pub fn parse_completion(body: &[u8]) -> Result<ParsedRequest, Reject> {
    let root = Path::ROOT;
    let mut draft = CompletionDraft::default();
    for (key, node) in object(parse(body)?, &root).map_err(|_| not_an_object())? {
        if matches!(node, Node::Null) {
            continue;
        }
        let at = root.key(&key);
        if let Some(node) = draft.common.take(&key, node, &at)? {
            draft.take(&key, node, &at)?;
        }
    }
    draft.finish(&root)
}

impl CompletionDraft {
    fn take(&mut self, key: &str, node: Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
        match key {
            "prompt" => self.prompt = Some(read_prompt(node, at)?),
            "echo" => self.echo = boolean(&node, at)?,
            "logprobs" => self.logprobs = Some(small_integer(&node, at, 0, MAX_LOGPROBS)? as u8),
            "best_of" => self.best_of = Some(small_integer(&node, at, 1, 20)?),
            "suffix" if matches!(&node, Node::Str(text) if text.is_empty()) => {}
            "suffix" => return Err(unsupported(at, "text cannot be inserted before a suffix; leave it out")),
            "messages" | "tools" | "tool_choice" | "parallel_tool_calls" | "functions" | "function_call" => {
                return Err(unsupported(at, "send a `prompt`, or use /v1/chat/completions"));
            }
            "top_logprobs" => return Err(unsupported(at, "this endpoint has `logprobs`, a number")),
            "max_completion_tokens" => return Err(unsupported(at, "this endpoint has `max_tokens`")),
            _ => extra::take(&mut self.common.extra, alike::COMPLETION, key, node, at)?,
        }
        Ok(())
    }

    fn finish(mut self, root: &Path<'_>) -> Result<ParsedRequest, Reject> {
        let n = self.common.n.unwrap_or(1);
        if self.best_of.is_some_and(|best_of| best_of != n) {
            return Err(unsupported(&root.key("best_of"), "all answers are returned; send the same number as `n`"));
        }
        if self.echo && self.logprobs.is_some() {
            return Err(unsupported(&root.key("echo"), "log-probabilities of a prompt are not computed; send one"));
        }
        self.common.sampling.logprobs = self.logprobs;
        let prompt = self.prompt.ok_or_else(|| missing(&root.key("prompt"), "a string"))?;
        let chat = Chat {
            form: Form::Completion { echo: self.echo },
            sampling: self.common.sampling.clone(),
            max_tokens: Some(self.common.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
            fields: FieldNames { messages: "prompt", ..FieldNames::default() },
            ..Chat::new("", vec![Message::text("m0", Role::User, prompt)])
        };
        self.common.finish(chat, root)
    }
}

fn read_prompt(node: Node<'_>, at: &Path<'_>) -> Result<String, Reject> {
    let mut items = match node {
        Node::Str(text) => return Ok(text.into_owned()),
        Node::List(items) => items,
        other => return Err(wrong_type(at, "a string", &other)),
    };
    match (items.len(), items.pop()) {
        (1, Some(Node::Str(text))) => Ok(text.into_owned()),
        (_, Some(Node::Int(_) | Node::List(_))) => {
            Err(refuse(at, "invalid_type", |param| format!("`{param}` must be text; token ids are not supported")))
        }
        (1, Some(other)) => Err(wrong_type(&at.index(0), "a string", &other)),
        (_, None) => Err(refuse(at, "empty_array", |param| format!("`{param}` must have a prompt"))),
        (len, Some(_)) => Err(refuse(at, "array_above_max_length", |param| {
            format!("`{param}` must be one string, not {len}; send one request for each")
        })),
    }
}
