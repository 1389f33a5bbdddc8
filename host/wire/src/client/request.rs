//! A `Chat` as a request to another server. A streamed one always asks for usage, so that what a cancelled answer
//! cost is known; a whole answer is asked for whole, which costs both sides a fraction of a stream.

use crate::stream::tool_call;
use crate::write::{float, list, optional_string, raw, string, uint, value};
use bytes::{Bytes, BytesMut};
use tidegate_types::{BETWEEN_PARTS, Chat, Form, Message, Part, ToolCall, ToolChoice, ToolDef, ToolOutcome};

/// Which field names the bound on generated tokens. Most servers know both; OpenAI's newer models refuse the
/// old one, older servers do not know the new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenBound {
    /// `max_tokens`.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`.
    MaxCompletionTokens,
}

/// What servers differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOptions {
    /// Which field carries the bound on generated tokens of a chat.
    pub token_bound: TokenBound,
    /// Whether what a model reasoned earlier goes back to it, as `reasoning_content`. Some models need it to go on
    /// (DeepSeek's, Kimi), some servers refuse the field (Groq, Cerebras).
    pub send_reasoning: bool,
}

impl Default for RequestOptions {
    fn default() -> Self {
        Self { token_bound: TokenBound::default(), send_reasoning: true }
    }
}

/// The path below an upstream's base URL.
pub fn endpoint_path(form: Form) -> &'static str {
    match form {
        Form::Chat => "/chat/completions",
        Form::Completion { .. } => "/completions",
    }
}

/// The body that asks `model` for `chat`.
pub fn request_body(chat: &Chat, model: &str, options: RequestOptions) -> Bytes {
    let mut out = BytesMut::with_capacity(512 + chat.messages.len() * 128);
    raw(&mut out, r#"{"model":"#);
    string(&mut out, model);
    match chat.form {
        Form::Chat => {
            write_messages(&mut out, chat, options.send_reasoning);
            write_tools(&mut out, chat);
        }
        // `echo` is never sent: the pipeline repeats the prompt as its guards left it, and judges the two as one text.
        Form::Completion { .. } => {
            raw(&mut out, r#","prompt":"#);
            string(&mut out, &chat.prompt());
        }
    }
    write_sampling(&mut out, chat);
    write_bounds(&mut out, chat, options.token_bound);
    if chat.stream {
        raw(&mut out, r#","stream":true,"stream_options":{"include_usage":true}"#);
    }
    for (name, extra) in &chat.extra {
        raw(&mut out, ",");
        string(&mut out, name);
        raw(&mut out, ":");
        value(&mut out, extra);
    }
    raw(&mut out, "}");
    out.freeze()
}

fn write_sampling(out: &mut BytesMut, chat: &Chat) {
    let sampling = &chat.sampling;
    // OpenAI takes 0, vLLM and TGI what is above it; this means the same and all take it.
    let top_p = sampling.top_p.map(|top_p| top_p.max(f32::MIN_POSITIVE));
    let reals = [
        (r#","temperature":"#, sampling.temperature),
        (r#","top_p":"#, top_p),
        (r#","min_p":"#, sampling.min_p),
        (r#","presence_penalty":"#, sampling.presence_penalty),
        (r#","frequency_penalty":"#, sampling.frequency_penalty),
        (r#","repetition_penalty":"#, sampling.repetition_penalty),
    ];
    for (name, real) in reals {
        if let Some(real) = real {
            raw(out, name);
            float(out, real);
        }
    }
    if let Some(top_k) = sampling.top_k {
        raw(out, r#","top_k":"#);
        raw(out, &top_k.to_string());
    }
    if let Some(seed) = sampling.seed {
        raw(out, r#","seed":"#);
        raw(out, &(seed as i64).to_string());
    }
    if !sampling.logit_bias.is_empty() {
        raw(out, r#","logit_bias":{"#);
        for (i, (token, bias)) in sampling.logit_bias.iter().enumerate() {
            raw(out, if i > 0 { ",\"" } else { "\"" });
            uint(out, u64::from(*token));
            raw(out, "\":");
            float(out, *bias);
        }
        raw(out, "}");
    }
    if let Some(count) = sampling.logprobs {
        let name = match chat.form {
            Form::Chat => r#","logprobs":true,"top_logprobs":"#,
            Form::Completion { .. } => r#","logprobs":"#,
        };
        raw(out, name);
        uint(out, u64::from(count));
    }
}

fn write_bounds(out: &mut BytesMut, chat: &Chat, bound: TokenBound) {
    if let Some(max_tokens) = chat.max_tokens {
        let name = match (chat.form, bound) {
            (Form::Chat, TokenBound::MaxCompletionTokens) => r#","max_completion_tokens":"#,
            _ => r#","max_tokens":"#,
        };
        raw(out, name);
        uint(out, u64::from(max_tokens));
    }
    if chat.n != 1 {
        raw(out, r#","n":"#);
        uint(out, u64::from(chat.n));
    }
    if !chat.stop.is_empty() {
        raw(out, r#","stop":"#);
        list(out, &chat.stop, |out, stop| string(out, stop));
    }
}

fn write_tools(out: &mut BytesMut, chat: &Chat) {
    if !chat.tools.is_empty() {
        raw(out, r#","tools":"#);
        list(out, &chat.tools, write_tool);
        // Servers differ in what they do where nobody says.
        if let Some(several) = chat.parallel_tool_calls {
            raw(out, r#","parallel_tool_calls":"#);
            raw(out, if several { "true" } else { "false" });
        }
    }
    match &chat.tool_choice {
        ToolChoice::Auto => {}
        // OpenAI refuses it where there are no tools, and there it says nothing.
        ToolChoice::None if chat.tools.is_empty() => {}
        ToolChoice::None => raw(out, r#","tool_choice":"none""#),
        ToolChoice::Required => raw(out, r#","tool_choice":"required""#),
        ToolChoice::Named(name) => {
            raw(out, r#","tool_choice":{"type":"function","function":{"name":"#);
            string(out, name);
            raw(out, "}}");
        }
    }
}

fn write_tool(out: &mut BytesMut, tool: &ToolDef) {
    raw(out, r#"{"type":"function","function":{"name":"#);
    string(out, &tool.name);
    if !tool.description.is_empty() {
        raw(out, r#","description":"#);
        string(out, &tool.description);
    }
    raw(out, r#","parameters":"#);
    value(out, &tool.input_schema);
    if tool.strict {
        raw(out, r#","strict":true"#);
    }
    raw(out, "}}");
}

/// One message of ours is one on the wire, except that each outcome of a tool is a message of its own.
fn write_messages(out: &mut BytesMut, chat: &Chat, send_reasoning: bool) {
    raw(out, r#","messages":["#);
    let mut first = true;
    for message in &chat.messages {
        let outcomes = message.parts.iter().filter_map(|part| match part {
            Part::ToolOutcome(outcome) => Some(outcome),
            _ => None,
        });
        let mut only_outcomes = false;
        for outcome in outcomes {
            only_outcomes = true;
            comma(out, &mut first);
            write_outcome(out, outcome, message.name.as_deref());
        }
        if !only_outcomes || message.parts.iter().any(|part| !matches!(part, Part::ToolOutcome(_))) {
            comma(out, &mut first);
            write_message(out, message, send_reasoning);
        }
    }
    raw(out, "]");
}

fn comma(out: &mut BytesMut, first: &mut bool) {
    if !std::mem::take(first) {
        raw(out, ",");
    }
}

/// `name` is the tool's, where the caller says it: some servers want it (Gemini).
fn write_outcome(out: &mut BytesMut, outcome: &ToolOutcome, name: Option<&str>) {
    raw(out, r#"{"role":"tool""#);
    if let Some(name) = name {
        raw(out, r#","name":"#);
        string(out, name);
    }
    raw(out, r#","tool_call_id":"#);
    string(out, &outcome.call_id);
    raw(out, r#","content":"#);
    string(out, &outcome.content);
    raw(out, "}");
}

fn write_message(out: &mut BytesMut, message: &Message, send_reasoning: bool) {
    raw(out, r#"{"role":"#);
    string(out, message.role.as_str());
    if let Some(name) = &message.name {
        raw(out, r#","name":"#);
        string(out, name);
    }
    raw(out, r#","content":"#);
    write_content(out, message);
    // Guards judge each of them alone.
    let texts = |pick: fn(&Part) -> Option<&str>| {
        let said = message.parts.iter().filter_map(pick).filter(|text| !text.is_empty());
        said.collect::<Vec<_>>().join(BETWEEN_PARTS)
    };
    let reasoning = texts(|part| if let Part::Reasoning(text) = part { Some(text) } else { None });
    if send_reasoning && !reasoning.is_empty() {
        raw(out, r#","reasoning_content":"#);
        string(out, &reasoning);
    }
    let refusal = texts(|part| if let Part::Refusal(text) = part { Some(text) } else { None });
    if !refusal.is_empty() {
        raw(out, r#","refusal":"#);
        string(out, &refusal);
    }
    write_calls(out, message);
    raw(out, "}");
}

fn write_calls(out: &mut BytesMut, message: &Message) {
    let calls: Vec<&ToolCall> = message
        .parts
        .iter()
        .filter_map(|part| if let Part::ToolCall(call) = part { Some(call) } else { None })
        .collect();
    if calls.is_empty() {
        return;
    }
    raw(out, r#","tool_calls":"#);
    list(out, calls, |out, call| {
        raw(out, "{");
        tool_call(out, call);
    });
}

/// A string for one text, which every server reads; parts for several or for other kinds; null for an assistant that
/// only called tools or declined: in any other message servers refuse null.
fn write_content(out: &mut BytesMut, message: &Message) {
    let stands_alone = |part: &Part| matches!(part, Part::ToolCall(_) | Part::Refusal(_));
    let content: Vec<&Part> =
        message.parts.iter().filter(|part| matches!(part, Part::Text(_) | Part::Opaque { .. })).collect();
    match content.as_slice() {
        [] => optional_string(out, (!message.parts.iter().any(stands_alone)).then_some("")),
        [Part::Text(text)] => string(out, text),
        parts => list(out, parts, |out, part| match part {
            Part::Opaque { body, .. } => value(out, body),
            Part::Text(text) => {
                raw(out, r#"{"type":"text","text":"#);
                string(out, text);
                raw(out, "}");
            }
            _ => {}
        }),
    }
}

#[cfg(test)]
mod tests;
