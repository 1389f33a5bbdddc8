//! What the service is asked: one JSON object, the same for prompts and answers.

use tidegate_plugin_sdk::json::{list, quote};
use tidegate_plugin_sdk::{Context, Message, Role};

/// What is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A prompt, or one text from outside.
    Prompt,
    /// A whole answer.
    Answer,
}

/// The body of the request.
pub fn body(stage: Stage, ctx: &Context, messages: &[&Message]) -> String {
    let stage = match stage {
        Stage::Prompt => "prompt",
        Stage::Answer => "answer",
    };
    format!(
        "{{\"stage\":\"{stage}\",\"request\":{},\"caller\":{},\"messages\":{}}}",
        quote(&ctx.request_id),
        quote(&ctx.caller),
        list(messages.iter().map(|message| one(message))),
    )
}

fn one(message: &Message) -> String {
    let texts = message.texts().map(|(part, text)| format!("{{\"part\":{part},\"text\":{}}}", quote(text)));
    // Attributes are JSON already.
    let source = message.attrs.iter().find(|(key, _)| key == "source").map(|(_, json)| format!(",\"source\":{json}"));
    format!(
        "{{\"id\":{},\"role\":{},\"texts\":{}{}}}",
        quote(&message.id),
        quote(role(&message.role)),
        list(texts),
        source.unwrap_or_default(),
    )
}

/// The role's name, in the config and for the service.
pub fn role(role: &Role) -> &str {
    match role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::Other(name) => name,
    }
}
