//! `POST /v1/completions`: raw prompts. Each becomes a user message of a `Chat` with `Form::Completion`.

use crate::field::{boolean, missing, object, refuse, small_integer, unsupported, wrong_type};
use crate::json::{Node, parse};
use crate::path::Path;
use crate::request::common::{Common, MAX_ANSWERS};
use crate::request::{ParsedRequest, alike, extra, not_an_object};
use tidegate_types::{Chat, FieldNames, Form, Message, Reject, Role};

/// OpenAI's default for this endpoint when the caller names no bound.
const DEFAULT_MAX_TOKENS: u32 = 16;
const MAX_LOGPROBS: u32 = 5;

#[derive(Default)]
struct CompletionDraft {
    common: Common,
    prompts: Option<Vec<String>>,
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
            "prompt" => self.prompts = Some(read_prompts(node, at)?),
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
        let prompts = self.prompts.ok_or_else(|| missing(&root.key("prompt"), "a string or a list of strings"))?;
        check_choices(prompts.len(), n, &root.key("prompt"))?;
        let message = |(i, prompt): (usize, String)| Message::text(format!("m{i}"), Role::User, prompt);
        let chat = Chat {
            form: Form::Completion { echo: self.echo },
            sampling: self.common.sampling.clone(),
            max_tokens: Some(self.common.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
            fields: FieldNames { messages: "prompt", ..FieldNames::default() },
            ..Chat::new("", prompts.into_iter().enumerate().map(message).collect())
        };
        self.common.finish(chat, root)
    }
}

fn read_prompts(node: Node<'_>, at: &Path<'_>) -> Result<Vec<String>, Reject> {
    let items = match node {
        Node::Str(text) => return Ok(vec![text.into_owned()]),
        Node::List(items) => items,
        other => return Err(wrong_type(at, "a string or a list of strings", &other)),
    };
    if items.is_empty() {
        return Err(refuse(at, "empty_array", |param| format!("`{param}` must have a prompt")));
    }
    let prompt = |(i, item): (usize, Node<'_>)| match item {
        Node::Str(text) => Ok(text.into_owned()),
        Node::Int(_) | Node::List(_) => {
            Err(refuse(at, "invalid_type", |param| format!("`{param}` must be text; token ids are not supported")))
        }
        other => Err(wrong_type(&at.index(i), "a string", &other)),
    };
    items.into_iter().enumerate().map(prompt).collect()
}

/// Each answer is a job, whichever prompt it is to.
fn check_choices(num_prompts: usize, n: u32, at: &Path<'_>) -> Result<(), Reject> {
    let most = MAX_ANSWERS / n.max(1);
    if num_prompts <= most as usize {
        return Ok(());
    }
    Err(refuse(at, "array_above_max_length", |param| {
        format!(
            "`{param}` has {num_prompts} prompts with {n} answers each (`n`); one request may have {MAX_ANSWERS} answers in \
             all, so send at most {most} prompts"
        )
    }))
}
