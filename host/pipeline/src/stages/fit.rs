//! Makes the request fit one model: template, tokens and sampling for the own engine; the messages as the
//! upstream shall see them otherwise. What a model cannot do is refused by name, never left out.

use crate::bounds::LengthBounds;
use crate::context::RequestContext;
use crate::estimate::{estimated_text, text_bytes, tool_bytes};
use crate::models::{EngineModel, Model, ModelBackend};
use crate::source::{EngineTurn, Reading};
use crate::stages::hold;
use crate::stages::sampling::resolve;
use serde_json::{Map, Value};
use std::sync::Arc;
use tidegate_text::{AddSpecial, ChatOptions, Past, TextError, ToolFormat, Within};
use tidegate_turns::Waiting;
use tidegate_types::{
    Chat, Fault, Form, Message, Part, Reject, RejectKind, Role, TenantId, ToolChoice, ToolDef, Transcript,
};

/// A request that fits its model.
pub(crate) enum Fitted {
    /// Tokens for the own engine.
    Engine(EngineTurn),
    /// A request for an upstream.
    Upstream(Arc<Chat>),
}

/// Fits `chat`, with the server's `tools` beside its own, to `model`, while somebody of `tenant` is `waiting` for it.
pub(crate) fn fit(
    model: &Model,
    chat: &Arc<Chat>,
    tools: &[ToolDef],
    (seeds, bounds): (&[u64], LengthBounds),
    (tenant, waiting): (&TenantId, &Waiting),
) -> Result<Fitted, Reject> {
    bounds.check_output(chat)?;
    match &model.backend {
        ModelBackend::Engine(engine) => {
            refuse_unsupported(model, chat)?;
            let offered = offered(model, engine, chat, tools)?;
            check_template_args(chat)?;
            let most_tokens = bounds.tightest_context(model.context_tokens);
            let within = Within { most_tokens, past: Past::Stop, gone: &|| waiting.is_over() };
            let prompt = encode(engine, chat, &offered, &within).map_err(|error| match error {
                TextError::TooManyTokens { at_least } => {
                    let bounded = bounds.check_prompt(at_least as u64, "at least ").err();
                    bounded.unwrap_or_else(|| engine.handle.refuse_longer(at_least))
                }
                error => refusal(chat.form, &error),
            })?;
            bounds.check_prompt(prompt.len() as u64, "")?;
            engine.handle.check_prompt(prompt.len(), chat.max_tokens != Some(0))?;
            let grammar = hold::grammar((model, engine), chat, &offered, &prompt, (tenant, waiting))?;
            if grammar.is_some() && forces_ours(&chat.tool_choice, tools, &offered) {
                check_behind((model, engine), chat, tools, &prompt, (tenant, waiting))?;
            }
            let mut turn = engine_turn(model, engine, chat, prompt, seeds, bounds);
            if chat.form == Form::Chat {
                let alone = grammar.is_some() && !offered.is_empty() && hold::has_calls_alone(chat);
                turn.reading = if alone { Reading::CallsAlone } else { Reading::Chat { tools: !offered.is_empty() } };
            }
            turn.grammar = grammar;
            Ok(Fitted::Engine(turn))
        }
        ModelBackend::Upstream(_) => Ok(Fitted::Upstream(upstream_chat(chat, tools, bounds)?)),
    }
}

/// What an upstream is asked; most often what was asked here, which is not copied. It is asked for the model by the name
/// that it has there.
fn upstream_chat(chat: &Arc<Chat>, tools: &[ToolDef], bounds: LengthBounds) -> Result<Arc<Chat>, Reject> {
    let mut fitted = Arc::clone(chat);
    if chat.messages.iter().any(is_passage) {
        Arc::make_mut(&mut fitted).messages = merge_context(&chat.messages);
    }
    if !tools.is_empty() {
        Arc::make_mut(&mut fitted).tools.extend(tools.iter().cloned());
    }
    bounds.check_prompt(estimated_text(&fitted, []), "about ")?;
    if let (None, Some(bound)) = (chat.max_tokens, bounds.output) {
        Arc::make_mut(&mut fitted).max_tokens = Some(bound.tokens);
    }
    Ok(fitted)
}

/// How many tokens a prompt has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// So many; for an upstream, whose tokenizer is not here, about so many.
    Exactly(usize),
    /// More than there is room for: about so many where all were counted, else at least so many.
    Over(usize),
}

/// How long the prompt is, where there is room for so many tokens; `past` those it is counted to its end, or not.
pub(super) fn prompt_length(
    model: &Model,
    chat: &Chat,
    tools: &[ToolDef],
    (room, past): (usize, Past),
    waiting: &Waiting,
) -> Result<Length, Reject> {
    match &model.backend {
        ModelBackend::Engine(engine) => {
            let offered = offered(model, engine, chat, tools)?;
            check_template_args(chat)?;
            let within = Within { most_tokens: room, past, gone: &|| waiting.is_over() };
            match encode(engine, chat, &offered, &within) {
                Ok(prompt) => Ok(Length::Exactly(prompt.len())),
                Err(TextError::TooManyTokens { at_least }) => Ok(Length::Over(at_least)),
                Err(error) => Err(refusal(chat.form, &error)),
            }
        }
        ModelBackend::Upstream(_) => {
            let bytes = text_bytes(chat) + tool_bytes(chat.tools.iter().chain(tools));
            Ok(Length::Exactly(bytes.div_ceil(UPSTREAM_TOKEN_BYTES)))
        }
    }
}

/// English has about four bytes a token; most other text has fewer.
const UPSTREAM_TOKEN_BYTES: usize = 3;

/// The tools that the template shows. A model without a format for tool calls could call none: the caller's are
/// refused, the server's are not offered to it.
fn offered(model: &Model, engine: &EngineModel, chat: &Chat, tools: &[ToolDef]) -> Result<Vec<ToolDef>, Reject> {
    if chat.tool_choice == ToolChoice::None {
        return Ok(Vec::new());
    }
    if engine.text.dialect().tools == ToolFormat::None {
        if chat.tools.is_empty() {
            return Ok(Vec::new());
        }
        let message = format!("model `{}` knows no format for tool calls; leave `tools` out", model.name);
        return Err(Reject::invalid("tools", message).code("unsupported_parameter"));
    }
    if chat.tool_choice == ToolChoice::Auto && hold::wants_json(chat) {
        return offered_beside_json(model, engine, chat);
    }
    let is_told = chat.tools.is_empty() || hold::tells_calls(&engine.text, chat);
    match &chat.tool_choice {
        // Behind a call of the server's nothing is forced.
        ToolChoice::Required if !is_told => Ok(chat.tools.clone()),
        ToolChoice::Named(name) if !is_told && tools.iter().any(|tool| tool.name == *name) => {
            let message = format!(
                "model `{}` writes calls as text: behind a call of `{name}`, which is a tool of this server, an answer could not be told from a call of yours; leave `tools` out, or name one of them",
                model.name
            );
            Err(Reject::invalid("tool_choice", message).code("unsupported_parameter"))
        }
        _ => Ok(chat.tools.iter().chain(tools).cloned().collect()),
    }
}

/// Whether a call of the server's `tools` may be what is forced.
fn forces_ours(choice: &ToolChoice, tools: &[ToolDef], offered: &[ToolDef]) -> bool {
    let forced = |tool: &ToolDef| match choice {
        ToolChoice::Required => offered.iter().any(|other| other.name == tool.name),
        ToolChoice::Named(name) => tool.name == *name,
        ToolChoice::Auto | ToolChoice::None => false,
    };
    tools.iter().any(forced)
}

/// Refuses at once what could not be held in the turn behind a call of the server's tools, which costs its caller.
fn check_behind(
    (model, engine): (&Model, &EngineModel),
    chat: &Chat,
    tools: &[ToolDef],
    prompt: &[u32],
    waiting: (&TenantId, &Waiting),
) -> Result<(), Reject> {
    let behind = Chat { tool_choice: ToolChoice::Auto, ..chat.clone() };
    let offered = offered(model, engine, &behind, tools)?;
    hold::grammar((model, engine), &behind, &offered, prompt, waiting).map(drop)
}

/// Beside JSON the caller's own tools alone: a model that may not say what it wants to would call the server's instead.
fn offered_beside_json(model: &Model, engine: &EngineModel, chat: &Chat) -> Result<Vec<ToolDef>, Reject> {
    // Its calls are JSON like the answer: nobody could tell which is which.
    if engine.text.dialect().tools == ToolFormat::LlamaJson && !chat.tools.is_empty() {
        let message = format!(
            "model `{}` writes calls as plain JSON, which could be the answer as well; send `tool_choice`, or leave `tools` out",
            model.name
        );
        return Err(Reject::invalid("tools", message).code("unsupported_parameter"));
    }
    Ok(chat.tools.clone())
}

/// Passages go into the question they were found for: templates know no role for them, and many refuse two
/// messages of one role in a row.
fn merge_context(messages: &[Message]) -> Vec<Message> {
    let mut merged: Vec<Message> = Vec::with_capacity(messages.len());
    let mut passages: Vec<String> = Vec::new();
    for message in messages {
        if is_passage(message) {
            passages.push(message.joined_text());
            continue;
        }
        let mut message = message.clone();
        if !passages.is_empty() && message.role == Role::User {
            let context = format!("Context: {}\n\nQuestion: ", passages.join("\n\n"));
            message.parts.insert(0, Part::Text(context));
            passages.clear();
        }
        merged.push(message);
    }
    merged
}

fn is_passage(message: &Message) -> bool {
    message.role == Role::User && message.provenance.is_some()
}

fn refuse_unsupported(model: &Model, chat: &Chat) -> Result<(), Reject> {
    let name = &model.name;
    let is_ours = |field: &str| match chat.form {
        Form::Chat => field == TEMPLATE_ARGS || hold::meets(field),
        Form::Completion { .. } => field == PARSE_SPECIAL,
    };
    if let Some(field) = chat.demands.iter().find(|field| !is_ours(field)) {
        let message = format!("model `{name}` does not support `{field}` with this value; leave it out");
        return Err(Reject::invalid(field.clone(), message).code("unsupported_parameter"));
    }
    chat.messages.iter().try_for_each(|message| refuse_opaque(name, message))
}

/// By the part's place in what its caller sent: by now there may be passages and a history before it.
fn refuse_opaque(model: &str, message: &Message) -> Result<(), Reject> {
    for (k, part) in message.parts.iter().enumerate() {
        if let Part::Opaque { kind, .. } = part {
            let why = format!("model `{model}` reads text only; it cannot take a part of type `{kind}`");
            let place = Transcript::own_index(&message.id).map(|i| format!("[{i}].content[{k}]")).unwrap_or_default();
            return Err(Reject::invalid(format!("messages{place}"), why).code("unsupported_content"));
        }
    }
    Ok(())
}

fn encode(engine: &EngineModel, chat: &Chat, tools: &[ToolDef], within: &Within<'_>) -> Result<Vec<u32>, TextError> {
    let (messages, text) = (merge_context(&chat.messages), &engine.text);
    match chat.form {
        Form::Completion { .. } => {
            let prompt: String = messages.iter().map(Message::joined_text).collect();
            // Text of others may be in a prompt. Only who says that it is rendered has seen to its marks.
            match chat.extra.get(PARSE_SPECIAL) {
                Some(Value::Bool(true)) => text.encode_rendered_within(&prompt, within),
                _ => text.encode_literal_within(&prompt, AddSpecial::Yes, within),
            }
        }
        Form::Chat => {
            let options = ChatOptions { template_args: template_args(chat), ..ChatOptions::default() };
            text.encode_chat_within(&messages, tools, &options, within)
        }
    }
}

pub(super) fn refusal(form: Form, error: &TextError) -> Reject {
    if !error.is_callers() {
        return Reject::internal(Fault::Operator, error.to_string());
    }
    let (param, code) = match (error, form) {
        (TextError::ReservedArgument(_), _) => (TEMPLATE_ARGS, TEMPLATE_ERROR),
        (_, Form::Chat) => ("messages", TEMPLATE_ERROR),
        // No template lays it out.
        (_, Form::Completion { .. }) => ("prompt", "invalid_value"),
    };
    Reject::invalid(param, error.to_string()).code(code)
}

/// Of a turn behind the server's own tools. What the caller sent was laid out in the first turn: a template that refuses the
/// conversation now refuses what was added here. What it says may repeat the caller's words.
pub(super) fn refused_later(model: &Model, reject: Reject, cx: &RequestContext) -> Reject {
    if reject.code.as_deref() != Some(TEMPLATE_ERROR) {
        return reject;
    }
    let message = format!(
        "the chat template of model `{}` does not take what the server's tools added; `tool_choice`: \"none\" asks without them",
        model.name
    );
    let mut refused = Reject::new(RejectKind::Internal, Fault::Operator, message).code(TEMPLATE_ERROR);
    refused.cause = cx.for_log(Some(reject.message));
    refused
}

/// The code of a conversation that a template does not render.
const TEMPLATE_ERROR: &str = "template_error";

/// The field by which the caller of a completion says that marks in its prompt are meant; llama.cpp's name for it.
const PARSE_SPECIAL: &str = "parse_special";
/// The field with variables for the template, such as `enable_thinking`.
const TEMPLATE_ARGS: &str = "chat_template_kwargs";
/// More than any template knows.
const MAX_TEMPLATE_ARGS: usize = 16;

/// The variables that the caller gives to the template.
fn template_args(chat: &Chat) -> Map<String, Value> {
    match chat.extra.get(TEMPLATE_ARGS) {
        Some(Value::Object(given)) => given.clone(),
        _ => Map::new(),
    }
}

/// They are switches and numbers: a text would come into the prompt past the guards, which look at messages. So it is for the
/// own engine, and for an upstream wherever there are guards of prompts.
pub(super) fn check_template_args(chat: &Chat) -> Result<(), Reject> {
    let Some(Value::Object(given)) = chat.extra.get(TEMPLATE_ARGS).filter(|_| chat.form == Form::Chat) else {
        return Ok(());
    };
    let refuse = |code: &str, message: String| Err(Reject::invalid(TEMPLATE_ARGS, message).code(code));
    if given.len() > MAX_TEMPLATE_ARGS {
        let message = format!("`{TEMPLATE_ARGS}` must have at most {MAX_TEMPLATE_ARGS} entries, not {}", given.len());
        return refuse("object_above_max_properties", message);
    }
    let is_switch = |value: &Value| matches!(value, Value::Bool(_) | Value::Number(_) | Value::Null);
    if let Some((name, _)) = given.iter().find(|(_, value)| !is_switch(value)) {
        let name: String = name.chars().take(64).collect();
        let message = format!(
            "`{name}` in `{TEMPLATE_ARGS}` must be true, false or a number, since no guard reads it; put text into a message"
        );
        return refuse("invalid_type", message);
    }
    Ok(())
}

fn engine_turn(
    model: &Model,
    engine: &EngineModel,
    chat: &Chat,
    prompt: Vec<u32>,
    seeds: &[u64],
    bounds: LengthBounds,
) -> EngineTurn {
    let room = bounds.tightest_context(model.context_tokens).saturating_sub(prompt.len()).max(1);
    let room = u32::try_from(room).unwrap_or(u32::MAX);
    let room = bounds.output.map_or(room, |bound| bound.tokens.min(room));
    EngineTurn {
        prompt,
        sampling: seeds.iter().map(|seed| resolve(&chat.sampling, &engine.defaults, *seed)).collect(),
        max_tokens: chat.max_tokens.map_or(room, |asked| asked.min(room)),
        stop: chat.stop.clone(),
        reading: Reading::Verbatim,
        single_call: chat.parallel_tool_calls == Some(false),
        grammar: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{Provenance, Quota, ToolHints};

    #[test]
    fn passages_go_into_the_question_they_were_found_for() {
        let mut passage = Message::text("p", Role::User, "Kelso is a port.");
        passage.provenance = Some(Provenance { source: "folder".into(), uri: None, span: None });
        let messages =
            [Message::text("m0", Role::System, "s"), passage, Message::text("m1", Role::User, "What is Kelso?")];
        let merged = merge_context(&messages);
        assert_eq!(merged.len(), 2);
        assert_eq!(merged[1].joined_text(), "Context: Kelso is a port.\n\nQuestion: What is Kelso?");
    }

    #[test]
    fn a_part_that_no_model_here_reads_is_named_by_its_place_in_what_was_sent() {
        let with_image = |id: &str| {
            let image = Part::Opaque { kind: "image_url".into(), body: Value::Null };
            Message { parts: vec![Part::Text("look".into()), image], ..Message::text(id, Role::User, "") }
        };
        let at = |id: &str| refuse_opaque("m", &with_image(id)).unwrap_err().param.unwrap();
        assert_eq!(at("m0"), "messages[0].content[1]");
        assert_eq!(at("m12"), "messages[12].content[1]");
        assert_eq!(at(&Transcript::earlier(3)), "messages", "that one is not in this request");
        assert!(refuse_opaque("m", &Message::text("m0", Role::User, "hi")).is_ok());
    }

    #[test]
    fn text_that_cannot_be_encoded_is_refused_by_what_refuses_it() {
        let (asked, broken) = (TextError::PrivateCharacters { limit: 9 }, TextError::Encode("no".into()));
        for (form, error, kind, code) in [
            (Form::Chat, &asked, RejectKind::Invalid, Some(TEMPLATE_ERROR)),
            (Form::Completion { echo: false }, &asked, RejectKind::Invalid, Some("invalid_value")),
            (Form::Completion { echo: false }, &broken, RejectKind::Internal, None),
        ] {
            let refused = refusal(form, error);
            assert_eq!((refused.kind, refused.code.as_deref()), (kind, code), "{error}");
        }
    }

    #[test]
    fn an_upstream_is_sent_what_was_asked_and_a_copy_only_where_that_changes() {
        let tool = ToolDef {
            name: "t".into(),
            description: String::new(),
            input_schema: Value::Null,
            strict: false,
            hints: ToolHints::default(),
        };
        let asked = || Arc::new(Chat::new("m", vec![Message::text("m0", Role::User, "hi")]));
        let bounds = LengthBounds::of_model(&Quota { max_output_tokens: Some(9), ..Quota::default() });
        let bounded = Arc::new(Chat { max_tokens: Some(5), ..Chat::clone(&asked()) });
        for (chat, bounds) in [(asked(), LengthBounds::default()), (bounded, bounds)] {
            assert!(Arc::ptr_eq(&upstream_chat(&chat, &[], bounds).unwrap(), &chat));
        }
        let mut passage = Message::text("p", Role::User, "Kelso is a port.");
        passage.provenance = Some(Provenance { source: "folder".into(), uri: None, span: None });
        let mut grounded = asked();
        Arc::make_mut(&mut grounded).messages.insert(0, passage);
        for (chat, tools, bounds, expected) in [
            (asked(), vec![tool], LengthBounds::default(), (1, 1, None)),
            (asked(), vec![], bounds, (1, 0, Some(9))),
            (grounded, vec![], LengthBounds::default(), (1, 0, None)),
        ] {
            let before = Chat::clone(&chat);
            let sent = upstream_chat(&chat, &tools, bounds).unwrap();
            assert_eq!((sent.messages.len(), sent.tools.len(), sent.max_tokens), expected);
            assert_eq!(*chat, before, "what is asked elsewhere is what was asked");
        }
    }
}
