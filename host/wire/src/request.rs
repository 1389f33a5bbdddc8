//! A request body becomes a `Chat`: read and validated once, here, for both endpoints. Whatever is wrong is a
//! 400 whose `param` is the path of the field; whatever is right is in the result, nothing is dropped.
//!
//! `null` means absent, as for OpenAI. Fields that this server does not interpret (`user`, `response_format`,
//! a vendor's extension) travel in `Chat::extra`; [`changes_answer`] says which of them an engine that cannot
//! honour them must refuse. One that another server may read as a field that is interpreted is refused (`alike.rs`).
//!
//! Parts: `request/common.rs` (fields of both endpoints), `messages.rs`, `tools.rs`, `completion.rs`,
//! `extra.rs`, `alike.rs`. Next: `messages.rs`.

pub(crate) mod alike;
pub(crate) mod common;
mod completion;
pub(crate) mod extra;
mod messages;
pub(crate) mod tools;

use crate::field::{boolean, missing, object, refuse, small_integer, unsupported};
use crate::json::{Node, parse};
use crate::path::Path;
use common::Common;
use tidegate_types::{Chat, FieldNames, Message, Reject, ToolChoice, ToolDef};

pub use completion::parse_completion;
pub use extra::changes_answer;

/// A validated request, with what only the answer's writer needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedRequest {
    /// What was asked.
    pub chat: Chat,
    /// The caller wants a usage chunk at the end of a stream.
    pub include_usage: bool,
    /// Whether events of a stream are to be made alike in size; absent where the caller does not say.
    pub include_obfuscation: Option<bool>,
}

/// Reads the body of `POST /v1/chat/completions`.
pub fn parse_chat(body: &[u8]) -> Result<ParsedRequest, Reject> {
    let root = Path::ROOT;
    let mut draft = ChatDraft::default();
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

fn not_an_object() -> Reject {
    refuse(&Path::ROOT, "invalid_type", |_| "the request body must be a JSON object".into())
}

/// What was read so far of a chat request.
#[derive(Default)]
struct ChatDraft {
    common: Common,
    messages: Option<Vec<Message>>,
    tools: Vec<ToolDef>,
    tool_choice: ToolChoice,
    parallel_tool_calls: Option<bool>,
    max_completion_tokens: Option<u32>,
    logprobs: bool,
    top_logprobs: Option<u8>,
}

/// More alternatives per token than OpenAI allows would cost a sort of the vocabulary per token.
const MAX_TOP_LOGPROBS: u32 = 20;

impl ChatDraft {
    fn take(&mut self, key: &str, node: Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
        match key {
            "messages" => self.messages = Some(messages::read(node, at)?),
            "tools" => self.tools = tools::read(node, at)?,
            "tool_choice" => self.tool_choice = tools::read_choice(node, at)?,
            "parallel_tool_calls" => self.parallel_tool_calls = Some(boolean(&node, at)?),
            "max_completion_tokens" => self.max_completion_tokens = Some(small_integer(&node, at, 1, u32::MAX)?),
            "logprobs" => self.logprobs = boolean(&node, at)?,
            "top_logprobs" => self.top_logprobs = Some(small_integer(&node, at, 0, MAX_TOP_LOGPROBS)? as u8),
            "functions" => return Err(unsupported(at, "it is deprecated; send `tools`")),
            "function_call" => return Err(unsupported(at, "it is deprecated; send `tool_choice`")),
            "prompt" => return Err(unsupported(at, "send `messages`, or use /v1/completions")),
            _ => extra::take(&mut self.common.extra, alike::CHAT, key, node, at)?,
        }
        Ok(())
    }

    fn finish(self, root: &Path<'_>) -> Result<ParsedRequest, Reject> {
        let at = root.key("top_logprobs");
        if self.top_logprobs.is_some() && !self.logprobs {
            return Err(refuse(&at, "invalid_value", |_| "`top_logprobs` needs `logprobs: true`".into()));
        }
        let max_tokens = match (self.common.max_tokens, self.max_completion_tokens) {
            (Some(old), Some(new)) if old != new => {
                return Err(refuse(&root.key("max_tokens"), "invalid_value", |_| {
                    format!("`max_tokens` ({old}) and `max_completion_tokens` ({new}) differ; send one of them")
                }));
            }
            (old, new) => new.or(old),
        };
        let bound = if self.max_completion_tokens.is_some() { "max_completion_tokens" } else { "max_tokens" };
        let messages = self.messages.ok_or_else(|| missing(&root.key("messages"), "the conversation, as a list"))?;
        let mut sampling = self.common.sampling.clone();
        sampling.logprobs = self.logprobs.then(|| self.top_logprobs.unwrap_or(0));
        let rest = Chat {
            demands: strict_tool(&self.tools),
            tools: self.tools,
            tool_choice: self.tool_choice,
            parallel_tool_calls: self.parallel_tool_calls,
            sampling,
            max_tokens,
            fields: FieldNames { max_tokens: bound, ..FieldNames::default() },
            ..Chat::new("", messages)
        };
        self.common.finish(rest, root)
    }
}

/// A strict tool asks for arguments that always fit its schema, which not every model's server can promise.
fn strict_tool(tools: &[ToolDef]) -> Vec<String> {
    let first = tools.iter().position(|tool| tool.strict);
    first.map(|i| format!("tools[{i}].function.strict")).into_iter().collect()
}

#[cfg(test)]
mod tests;
