//! Between generated types and the SDK's own, both ways, without copying text.

use super::bindings as b;
use super::bindings::http::tidegate::plugin::http as web;
use super::bindings::memory::exports::tidegate::plugin::memory as remembering;
use super::bindings::models::tidegate::plugin::models as asked;
use super::bindings::observer::exports::tidegate::plugin::observer as observing;
use super::bindings::output_guard::exports::tidegate::plugin::output_guard as output;
use super::bindings::prompt_guard::exports::tidegate::plugin::prompt_guard as prompt;
use super::bindings::router::exports::tidegate::plugin::router as routing;
use super::bindings::stream_guard::exports::tidegate::plugin::stream_guard as stream;
use super::bindings::types as w;
use crate::host;
use crate::stages::*;
use crate::types::*;

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
    w::Message => Message { id, role, name, attrs; ; parts }
    Message => w::Message { id, role, name, attrs; ; parts }
    Verdict => w::Verdict { attrs; action; findings }
    prompt::Prompt => Prompt { tools, params, truncated; ; messages }
    routing::Request => RouteRequest { prompt_tokens, attrs; ; messages, findings }
    remembering::Exchange => Exchange { attrs; ; messages }
    observing::Summary => Summary { outcome, detail, model, first_ms, total_ms, usage, attrs; ; findings }
    asked::Reply => host::models::Reply { finish_reason, usage; message; }
    host::http::SecretHeader => web::SecretHeader { name, prefix, secret; ; }
}

impl From<w::Part> for Part {
    fn from(part: w::Part) -> Self {
        match part {
            w::Part::Text(text) => Self::Text(text),
            w::Part::Reasoning(text) => Self::Reasoning(text),
            w::Part::Refusal(text) => Self::Refusal(text),
            w::Part::Image(media) => Self::Image(media),
            w::Part::Audio(media) => Self::Audio(media),
            w::Part::File(media) => Self::File(media),
            w::Part::ToolCall(call) => Self::ToolCall(call),
            w::Part::ToolOutcome(outcome) => Self::ToolOutcome(outcome),
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
            Part::Image(media) => Self::Image(media),
            Part::Audio(media) => Self::Audio(media),
            Part::File(media) => Self::File(media),
            Part::ToolCall(call) => Self::ToolCall(call),
            Part::ToolOutcome(outcome) => Self::ToolOutcome(outcome),
            Part::Opaque { kind, body } => Self::Opaque(w::OpaquePart { kind, body }),
        }
    }
}

/// Implements `From` between two enums without payloads and with the same names.
macro_rules! enums {
    ($($from:ty => $to:ty { $($name:ident),* })*) => {
        $(impl From<$from> for $to {
            fn from(v: $from) -> Self {
                match v {
                    $(<$from>::$name => Self::$name,)*
                }
            }
        })*
    };
}

enums! {
    w::Severity => Severity { Info, Low, Medium, High, Critical }
    Severity => w::Severity { Info, Low, Medium, High, Critical }
}

impl From<w::Finding> for Finding {
    fn from(f: w::Finding) -> Self {
        Self {
            category: f.category,
            severity: f.severity.into(),
            score: f.score,
            message_id: f.message_id,
            span: f.span,
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
            span: f.span,
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
            Action::Refuse(refusal) => Self::Refuse(refusal),
        }
    }
}

impl From<Edit> for w::Edit {
    fn from(edit: Edit) -> Self {
        match edit {
            Edit::ReplaceText { message_id, part, span, text } => {
                Self::ReplaceText(w::TextEdit { message_id, part, span, text })
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
            WindowAction::Redact(redactions) => Self::Redact(redactions),
            WindowAction::Halt { refusal, farewell } => Self::Halt(stream::Halting { refusal, farewell }),
        }
    }
}

impl From<output::Output> for Output {
    fn from(o: output::Output) -> Self {
        Self {
            choices: o.choices.into_iter().map(Into::into).collect(),
            finish_reasons: o.finish_reasons,
            usage: o.usage,
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
