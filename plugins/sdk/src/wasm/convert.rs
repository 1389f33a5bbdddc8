//! Between generated types and the SDK's own, both ways, without copying text.

use super::bindings as b;
use super::bindings::accounting::tidegate::plugin::accounting;
use super::bindings::http::tidegate::plugin::http as web;
use super::bindings::memory::exports::tidegate::plugin::memory as remembering;
use super::bindings::models::tidegate::plugin::models as asked;
use super::bindings::observer::exports::tidegate::plugin::observer as observing;
use super::bindings::output_guard::exports::tidegate::plugin::output_guard as output;
use super::bindings::prompt_guard::exports::tidegate::plugin::prompt_guard as prompt;
use super::bindings::retriever::exports::tidegate::plugin::retriever as retrieval;
use super::bindings::router::exports::tidegate::plugin::router as routing;
use super::bindings::stream_guard::exports::tidegate::plugin::stream_guard as stream;
use super::bindings::types as w;
use crate::stages::*;
use crate::types::*;
use crate::{Error, host};

/// Implements `From` between two records with the same fields; `into` marks those that need a conversion.
macro_rules! records {
    ($($from:ty => $to:ty { $($field:ident),* ; $($into:ident),* ; $($list:ident),* })*) => {
        $(impl From<$from> for $to {
            fn from(v: $from) -> Self {
                Self {
                    $($field: v.$field,)*
                    $($into: v.$into.into(),)*
                    $($list: v.$list.into_iter().map(Into::into).collect(),)*
                }
            }
        })*
    };
}

records! {
    w::Context => Context { request_id, caller, deadline_ms, streaming, attrs; ; }
    w::Message => Message { id, name, attrs; role; parts }
    Message => w::Message { id, name, attrs; role; parts }
    w::Media => Media { mime; source; }
    Media => w::Media { mime; source; }
    w::ToolCall => ToolCall { id, name, arguments; ; }
    ToolCall => w::ToolCall { id, name, arguments; ; }
    w::ToolOutcome => ToolOutcome { call_id, content, structured, is_error; ; }
    ToolOutcome => w::ToolOutcome { call_id, content, structured, is_error; ; }
    w::ToolHints => ToolHints { read_only, destructive, idempotent, open_world; ; }
    ToolHints => w::ToolHints { read_only, destructive, idempotent, open_world; ; }
    w::ToolDef => ToolDef { name, description, input_schema, attrs; hints; }
    ToolDef => w::ToolDef { name, description, input_schema, attrs; hints; }
    w::Span => Span { start, end; ; }
    Span => w::Span { start, end; ; }
    Refusal => w::Refusal { code, public_message, private_reason; ; }
    Verdict => w::Verdict { attrs; action; findings }
    prompt::Prompt => Prompt { params, truncated; ; messages, tools }
    routing::Request => RouteRequest { prompt_tokens, attrs; ; messages, findings }
    routing::Candidate => Candidate { id, model, healthy, context_tokens, attrs; ; }
    Decision => routing::Decision { order, reason, attrs; ; }
    retrieval::Query => Query { text, top_k, attrs; ; }
    stream::Window => Window { seq, choice, text, settled, ending, attrs; channel; }
    Redaction => stream::Redaction { text; span; }
    accounting::Usage => Usage { input, input_cached, output, attrs; ; }
    remembering::Question => Question { text, limit, attrs; ; }
    remembering::Exchange => Exchange { attrs; ; messages }
    Item => remembering::Item { id, text, score, attrs; ; }
    observing::Summary => Summary { outcome, detail, model, first_ms, total_ms, attrs; usage; findings }
    asked::Reply => host::models::Reply { finish_reason; message, usage; }
    host::http::SecretHeader => web::SecretHeader { name, prefix, secret; ; }
}

/// Implements `From` both ways between an enum of the contract and its namesake; the first list has no payload.
macro_rules! variants {
    ($($theirs:ident :: $name:ident { $($unit:ident),* ; $($one:ident),* })*) => {
        $(impl From<$theirs::$name> for $name {
            fn from(v: $theirs::$name) -> Self {
                match v {
                    $($theirs::$name::$unit => Self::$unit,)*
                    $($theirs::$name::$one(inner) => Self::$one(inner.into()),)*
                }
            }
        }
        impl From<$name> for $theirs::$name {
            fn from(v: $name) -> Self {
                match v {
                    $($name::$unit => Self::$unit,)*
                    $($name::$one(inner) => Self::$one(inner.into()),)*
                }
            }
        })*
    };
}

variants! {
    w::Role { System, Developer, User, Assistant, Tool; Other }
    w::Severity { Info, Low, Medium, High, Critical; }
    w::MediaSource { Withheld; Url, Inline }
    stream::Channel { Text, Reasoning, Refusal; ToolArguments }
    w::Error { ; InvalidConfig, InvalidInput, Denied, Unavailable, Timeout, Unsupported, Other }
}

impl From<w::Part> for Part {
    fn from(part: w::Part) -> Self {
        match part {
            w::Part::Text(text) => Self::Text(text),
            w::Part::Reasoning(text) => Self::Reasoning(text),
            w::Part::Refusal(text) => Self::Refusal(text),
            w::Part::Image(media) => Self::Image(media.into()),
            w::Part::Audio(media) => Self::Audio(media.into()),
            w::Part::File(media) => Self::File(media.into()),
            w::Part::ToolCall(call) => Self::ToolCall(call.into()),
            w::Part::ToolOutcome(outcome) => Self::ToolOutcome(outcome.into()),
            w::Part::Opaque(part) => Self::Opaque { kind: part.kind, body: part.body },
        }
    }
}

impl From<Part> for w::Part {
    fn from(part: Part) -> Self {
        match part {
            Part::Text(text) => Self::Text(text),
            Part::Reasoning(text) => Self::Reasoning(text),
            Part::Refusal(text) => Self::Refusal(text),
            Part::Image(media) => Self::Image(media.into()),
            Part::Audio(media) => Self::Audio(media.into()),
            Part::File(media) => Self::File(media.into()),
            Part::ToolCall(call) => Self::ToolCall(call.into()),
            Part::ToolOutcome(outcome) => Self::ToolOutcome(outcome.into()),
            Part::Opaque { kind, body } => Self::Opaque(w::OpaquePart { kind, body }),
        }
    }
}

impl From<w::Finding> for Finding {
    fn from(f: w::Finding) -> Self {
        Self {
            category: f.category,
            severity: f.severity.into(),
            score: f.score,
            message_id: f.message_id,
            span: f.span.map(Into::into),
            attrs: f.attrs,
        }
    }
}

impl From<Finding> for w::Finding {
    fn from(f: Finding) -> Self {
        Self {
            category: f.category,
            severity: f.severity.into(),
            score: f.score,
            message_id: f.message_id,
            span: f.span.map(Into::into),
            attrs: f.attrs,
        }
    }
}

impl From<Action> for w::Action {
    fn from(action: Action) -> Self {
        match action {
            Action::Allow => Self::Allow,
            Action::Rewrite(edits) => Self::Rewrite(edits.into_iter().map(Into::into).collect()),
            Action::Respond(parts) => Self::Respond(parts.into_iter().map(Into::into).collect()),
            Action::Refuse(refusal) => Self::Refuse(refusal.into()),
        }
    }
}

impl From<Edit> for w::Edit {
    fn from(edit: Edit) -> Self {
        match edit {
            Edit::ReplaceText { message_id, part, span, text } => {
                Self::ReplaceText(w::TextEdit { message_id, part, span: span.into(), text })
            }
            Edit::PutMessage { after, message } => Self::PutMessage(w::Insertion { after, message: message.into() }),
            Edit::DropMessage(id) => Self::DropMessage(id),
            Edit::SetArguments(call, json) => Self::SetArguments((call, json)),
            Edit::SetParam(name, json) => Self::SetParam((name, json)),
        }
    }
}

impl From<WindowAction> for stream::WindowAction {
    fn from(action: WindowAction) -> Self {
        match action {
            WindowAction::Pass => Self::Pass,
            WindowAction::Redact(redactions) => Self::Redact(redactions.into_iter().map(Into::into).collect()),
            WindowAction::Halt { refusal, farewell } => {
                Self::Halt(stream::Halting { refusal: refusal.into(), farewell })
            }
        }
    }
}

impl From<Chunk> for retrieval::Chunk {
    fn from(c: Chunk) -> Self {
        Self {
            id: c.id,
            text: c.text,
            uri: c.uri,
            title: c.title,
            score: c.score,
            origin: c.origin.map(Into::into),
            attrs: c.attrs,
        }
    }
}

impl From<output::Output> for Output {
    fn from(o: output::Output) -> Self {
        Self {
            choices: o.choices.into_iter().map(Into::into).collect(),
            finish_reasons: o.finish_reasons,
            usage: o.usage.map(Into::into),
            attrs: o.attrs,
        }
    }
}

impl From<host::http::Request> for web::Request {
    fn from(r: host::http::Request) -> Self {
        Self {
            method: r.method,
            url: r.url,
            headers: r.headers.into_iter().map(|(name, value)| web::Header { name, value }).collect(),
            secret_headers: r.secret_headers.into_iter().map(Into::into).collect(),
            body: r.body,
            timeout_ms: r.timeout_ms,
        }
    }
}

impl From<web::Response> for host::http::Response {
    fn from(r: web::Response) -> Self {
        let headers = r.headers.into_iter().map(|header| (header.name, header.value)).collect();
        Self { status: r.status, headers, body: r.body, truncated: r.truncated }
    }
}

impl From<b::documents::tidegate::plugin::documents::Entry> for host::documents::Entry {
    fn from(e: b::documents::tidegate::plugin::documents::Entry) -> Self {
        Self { path: e.path, size_bytes: e.size_bytes, modified_unix_ms: e.modified_unix_ms }
    }
}
