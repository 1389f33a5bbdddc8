//! Names that another server may read as a field that means something here.
//!
//! A field that this server does not interpret travels on as it came, and not every server reads names as this one does: Go's
//! `encoding/json` and ASP.NET's JSON match them in any case and take the last that fits, some readers look past `_` and `-`,
//! and a few servers have names of their own for a field of OpenAI's. Of `messages` and `Messages` guards would then judge the
//! one and the model answer the other; the same goes for models, bounds and what is billed. Such a name is refused.
//!
//! The lists name what `request.rs`, `completion.rs` and `responses/request.rs` read and refuse, and what `client/request.rs`
//! writes; `tests/spellings.rs` holds them against the schemas and the writer.

use crate::field::{refuse, unsupported};
use crate::json::{Entries, Node};
use crate::path::Path;
use crate::request::extra;
use tidegate_types::Reject;

/// What an endpoint, or an object within a body, interprets.
pub(crate) type Names = &'static [&'static [&'static str]];

/// Of chats, completions and responses.
const GENERATION: &[&str] = &[
    "model",
    "stop",
    "max_tokens",
    "n",
    "best_of",
    "echo",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "max_completion_tokens",
    "messages",
    "prompt",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
];

pub(crate) const CHAT: Names = &[GENERATION];
pub(crate) const COMPLETION: Names = &[GENERATION, &["suffix"]];
/// Asked of upstreams as a chat.
pub(crate) const RESPONSE: Names = &[
    GENERATION,
    &[
        "input",
        "instructions",
        "background",
        "previous_response_id",
        "conversation",
        "truncation",
        "max_output_tokens",
        "text",
        "reasoning",
        "include",
        "max_tool_calls",
        "context_management",
    ],
];

/// Of a part of a message that is passed on as it is; what is not its own belongs to another kind.
pub(crate) const PART: Names =
    &[&["type", "text", "refusal", "image_url", "input_audio", "file", "video_url", "audio_url"]];
/// Of what such a part is about.
pub(crate) const PART_BODY: Names = &[&["url", "detail", "data", "format", "file_data", "file_id", "filename"]];
/// Of `response_format`, and of the schema that it has; `text.format` has them in one.
pub(crate) const FORMAT: Names = &[&["type", "json_schema", "name", "description", "schema", "strict"]];
/// Of a tool's schema.
pub(crate) const PARAMETERS: Names = &[&["type"]];
/// What templates are given of a request, as some servers name it. One of `chat_template_kwargs` would stand in its place:
/// Llama's templates take `custom_tools` for the tools.
const TEMPLATE: Names = &[&["messages", "conversation", "tools", "custom_tools", "documents", "chat_template"]];

/// What servers call a field of OpenAI's besides its own name. llama.cpp goes by `n_predict` and `n_cmpl` where `max_tokens` and
/// `n` are given, too.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("n_predict", "max_tokens"),
    ("num_predict", "max_tokens"),
    ("max_new_tokens", "max_tokens"),
    ("n_cmpl", "n"),
    ("use_beam_search", "best_of"),
    // A prompt that is tokenized already, which no guard reads, stands in the place of the messages.
    ("prompt_embeds", "prompt"),
    ("prompt_token_ids", "prompt"),
    ("input_ids", "prompt"),
    // Proxies take another model, or a whole other request, from these.
    ("models", "model"),
    ("fallbacks", "model"),
    ("context_window_fallbacks", "model"),
    ("content_policy_fallbacks", "model"),
    ("mock_testing_fallbacks", "model"),
    ("lora", "model"),
    ("lora_path", "model"),
    ("lora_request", "model"),
    ("extra_body", "messages"),
    ("chat_template", "messages"),
    ("documents", "messages"),
];

/// Refuses a field `key` that travels on where it is one of `names`, or of those in [`extra`], to another reader.
pub(crate) fn check_field(key: &str, at: &Path<'_>, names: Names) -> Result<(), Reject> {
    let folded = Folded::new(key);
    if let Some((_, meant)) = OTHER_NAMES.iter().find(|(other, _)| folded.is(other)) {
        let remedy = format!("some servers read it as `{meant}`; leave it out");
        return Err(unsupported(at, &remedy));
    }
    match folded.twin(names).or_else(|| extra::names().find(|name| folded.is(name))) {
        None => Ok(()),
        Some(name) if name == key => Err(unsupported(at, "this endpoint does not have it; leave it out")),
        Some(name) => Err(too_alike(at, name)),
    }
}

/// Whether some server reads the field `key` as `name`.
pub(crate) fn is_read_as(key: &str, name: &str) -> bool {
    Folded::new(key).is(name)
}

/// Refuses members of an object that travels on where they are spelled otherwise than one of `names`.
pub(crate) fn check_members(entries: &Entries<'_>, at: &Path<'_>, names: Names) -> Result<(), Reject> {
    entries.iter().try_for_each(|(key, _)| match Folded::new(key).twin(names) {
        Some(name) if name != key => Err(too_alike(&at.key(key), name)),
        _ => Ok(()),
    })
}

/// Refuses what would take the place of messages and tools in a template; the switches of `chat_template_kwargs` are anybody's.
pub(crate) fn check_template_args(node: &Node<'_>, at: &Path<'_>) -> Result<(), Reject> {
    let Node::Map(entries) = node else { return Ok(()) };
    match entries.iter().find(|(key, _)| Folded::new(key).twin(TEMPLATE).is_some()) {
        Some((key, _)) => Err(refuse(at, "unsupported_parameter", |param| {
            let shown: String = key.chars().take(Folded::MOST_CHARS).collect();
            format!("`{shown}` in `{param}` is what a template is given of the request; leave it out")
        })),
        None => Ok(()),
    }
}

/// Whether a part of a message that is of the kind `kind` has no member `key`: it is one of another kind's.
pub(crate) fn is_foreign(key: &str, kind: &str) -> bool {
    key != "type" && key != kind && PART.concat().contains(&key)
}

fn too_alike(at: &Path<'_>, name: &str) -> Reject {
    refuse(at, "unsupported_parameter", |param| {
        format!("`{param}` may be read as `{name}`, which is spelled otherwise; send `{name}`, or leave it out")
    })
}

/// A key without what readers look past.
struct Folded(String);

impl Folded {
    /// Longer than any name of ours: of a key that is longer no more is looked at.
    const MOST_CHARS: usize = 32;

    /// Without case, `_` and `-`. By way of upper case, so that the long s and the dotless i come out as what they are read as;
    /// by way of lower case, so that the Kelvin sign does. A dotted I leaves its dot.
    fn new(key: &str) -> Self {
        const DOT_ABOVE: char = '\u{307}';
        let kept = key.chars().filter(|c| !matches!(c, '_' | '-'));
        let folded = kept.flat_map(char::to_uppercase).flat_map(char::to_lowercase).filter(|c| *c != DOT_ABOVE);
        Self(folded.take(Self::MOST_CHARS).collect())
    }

    /// Whether somebody reads it as `name`, which is one of ours: ASCII, in lower case.
    fn is(&self, name: &str) -> bool {
        name.bytes().filter(|b| *b != b'_').eq(self.0.bytes())
    }

    fn twin(&self, names: Names) -> Option<&'static str> {
        names.iter().copied().flatten().copied().find(|name| self.is(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_in_any_case_and_with_other_marks() {
        for key in ["messages", "Messages", "MESSAGES", "meſſages", "mEſSages", "meßages", "-messages", "mess_ages"]
        {
            assert_eq!(Folded::new(key).twin(CHAT), Some("messages"), "{key}");
        }
        for (key, name) in [("to\u{212a}en", "token"), ("İnput", "input"), ("ınput", "input"), ("ﬁle", "file")] {
            assert!(Folded::new(key).is(name), "{key}");
        }
        let long = format!("model{}", "x".repeat(99));
        for key in ["message", "messagess", "messages ", "messages\0", "", "_", "x", "tool", &long] {
            assert_eq!(Folded::new(key).twin(CHAT), None, "{key}");
        }
    }

    /// Names are compared as they are.
    #[test]
    fn the_lists_are_folded_and_short() {
        let lists = [CHAT, COMPLETION, RESPONSE, PART, PART_BODY, FORMAT, PARAMETERS, TEMPLATE];
        let all = lists.into_iter().flatten().copied().flatten().copied();
        for name in all.chain(extra::names()).chain(OTHER_NAMES.iter().map(|(name, _)| *name)) {
            assert!(Folded::new(name).is(name) && name.len() < Folded::MOST_CHARS, "{name}");
        }
    }
}
