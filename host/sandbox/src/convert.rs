//! Between the host's types and the contract's. Into the guest everything is borrowed; JSON is rendered first
//! ([`Made`]), since borrowed parts need a place to point at. Out of the guest everything is checked.

use crate::bindings::tidegate::plugin::{accounting, types as wit};
use crate::call_ids::CallIds;
use crate::json::{self, Values};
use crate::stage::Refusal;
use serde_json::Value;
use tidegate_types::{
    Finding, Message, Part, Provenance, Role, Severity, Span, ToolCall, ToolDef, ToolHints, ToolOutcome, Usage,
};

/// What messages and tools are given with and do not hold as it is.
pub(crate) struct Made {
    /// The JSON that they hold, in the order in which [`Rows`] and [`tool_defs`] ask for it.
    texts: Vec<String>,
    calls: CallIds,
}

impl Made {
    pub(crate) fn of_messages(messages: &[Message]) -> Self {
        let mut texts = Vec::new();
        for message in messages {
            if let Some(provenance) = &message.provenance {
                push_provenance(&mut texts, provenance);
            }
            for part in &message.parts {
                if let Part::Opaque { body, .. } = part {
                    texts.push(body.to_string());
                }
            }
        }
        Self { texts, calls: CallIds::of(messages) }
    }

    pub(crate) fn of_tools(tools: &[ToolDef]) -> Self {
        Self { texts: tools.iter().map(|tool| tool.input_schema.to_string()).collect(), calls: CallIds::default() }
    }
}

fn push_provenance(texts: &mut Vec<String>, provenance: &Provenance) {
    texts.push(Value::from(provenance.source.as_str()).to_string());
    texts.extend(provenance.uri.as_ref().map(|uri| Value::from(uri.as_str()).to_string()));
    texts.extend(provenance.span.map(|span| format!("[{},{}]", span.start, span.end)));
}

/// What the messages' lists point at.
pub(crate) struct Rows<'a>(Vec<Row<'a>>);

struct Row<'a> {
    parts: Vec<wit::PartParam<'a>>,
    attrs: Vec<(&'a str, &'a str)>,
}

impl<'a> Rows<'a> {
    pub(crate) fn of(messages: &'a [Message], made: &'a Made) -> Self {
        let mut json = made.texts.iter().map(String::as_str);
        let rows = messages.iter().enumerate().map(|(at, message)| {
            let attrs = message.provenance.as_ref().map_or_else(Vec::new, |from| provenance_attrs(from, &mut json));
            let id = |part_at, own| made.calls.at((at, part_at), own);
            let parts = message.parts.iter().enumerate();
            let parts = parts.map(|(part_at, part)| part_param(part, |own| id(part_at, own), &mut json)).collect();
            Row { parts, attrs }
        });
        Self(rows.collect())
    }

    /// The messages as the guest gets them.
    pub(crate) fn messages(&'a self, messages: &'a [Message]) -> Vec<wit::MessageParam<'a>> {
        let pairs = messages.iter().zip(&self.0);
        let param = |(message, Row { parts, attrs }): (&'a Message, &'a Row<'a>)| wit::MessageParam {
            id: &message.id,
            role: role_param(&message.role),
            name: message.name.as_deref(),
            parts,
            attrs,
        };
        pairs.map(param).collect()
    }
}

fn provenance_attrs<'a>(from: &Provenance, json: &mut impl Iterator<Item = &'a str>) -> Vec<(&'a str, &'a str)> {
    let names = [Some("source"), from.uri.as_ref().map(|_| "uri"), from.span.map(|_| "span")];
    names.into_iter().flatten().zip(json).collect()
}

pub(crate) fn role_param(role: &Role) -> wit::RoleParam<'static> {
    match role {
        Role::System => wit::RoleParam::System,
        Role::Developer => wit::RoleParam::Developer,
        Role::User => wit::RoleParam::User,
        Role::Assistant => wit::RoleParam::Assistant,
        Role::Tool => wit::RoleParam::Tool,
    }
}

fn part_param<'a>(
    part: &'a Part,
    id: impl Fn(&'a str) -> &'a str,
    json: &mut impl Iterator<Item = &'a str>,
) -> wit::PartParam<'a> {
    match part {
        Part::Text(text) => wit::PartParam::Text(text),
        Part::Reasoning(text) => wit::PartParam::Reasoning(text),
        Part::Refusal(text) => wit::PartParam::Refusal(text),
        Part::ToolCall(call) => {
            wit::PartParam::ToolCall(wit::ToolCallParam { id: id(&call.id), ..tool_call_param(call) })
        }
        Part::ToolOutcome(outcome) => wit::PartParam::ToolOutcome(wit::ToolOutcomeParam {
            call_id: id(&outcome.call_id),
            content: &outcome.content,
            structured: outcome.structured.as_deref(),
            is_error: outcome.is_error,
        }),
        Part::Opaque { kind, .. } => {
            wit::PartParam::Opaque(wit::OpaquePartParam { kind, body: json.next().unwrap_or("null") })
        }
    }
}

pub(crate) fn tool_call_param(call: &ToolCall) -> wit::ToolCallParam<'_> {
    wit::ToolCallParam { id: &call.id, name: &call.name, arguments: &call.arguments }
}

/// Of a tool whose caller wants arguments by its schema, and no others.
const STRICT: [(&str, &str); 1] = [("strict", "true")];

pub(crate) fn tool_defs<'a>(tools: &'a [ToolDef], made: &'a Made) -> Vec<wit::ToolDefParam<'a>> {
    let param = |(tool, schema): (&'a ToolDef, &'a String)| wit::ToolDefParam {
        name: &tool.name,
        description: &tool.description,
        input_schema: schema,
        hints: wit::ToolHints {
            read_only: tool.hints.read_only,
            destructive: tool.hints.destructive,
            idempotent: tool.hints.idempotent,
            open_world: tool.hints.open_world,
        },
        attrs: if tool.strict { &STRICT } else { &[] },
    };
    tools.iter().zip(&made.texts).map(param).collect()
}

/// Pairs of texts as the guest gets them.
pub(crate) fn attrs(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

pub(crate) fn usage_param(usage: &Usage) -> accounting::UsageParam<'static> {
    accounting::UsageParam {
        input: usage.input_tokens,
        input_cached: usage.cached_tokens,
        output: usage.output_tokens,
        attrs: &[],
    }
}

pub(crate) fn findings(findings: &[Finding]) -> Vec<wit::FindingParam<'_>> {
    findings.iter().map(finding_param).collect()
}

fn finding_param(finding: &Finding) -> wit::FindingParam<'_> {
    wit::FindingParam {
        category: &finding.category,
        severity: match finding.severity {
            Severity::Info => wit::Severity::Info,
            Severity::Low => wit::Severity::Low,
            Severity::Medium => wit::Severity::Medium,
            Severity::High => wit::Severity::High,
            Severity::Critical => wit::Severity::Critical,
        },
        score: finding.score,
        message_id: finding.message_id.as_deref(),
        span: finding.span.map(|span| wit::Span { start: span.start, end: span.end }),
        attrs: &[],
    }
}

pub(crate) fn span(span: wit::Span) -> Span {
    Span { start: span.start, end: span.end }
}

pub(crate) fn severity(severity: wit::Severity) -> Severity {
    match severity {
        wit::Severity::Info => Severity::Info,
        wit::Severity::Low => Severity::Low,
        wit::Severity::Medium => Severity::Medium,
        wit::Severity::High => Severity::High,
        wit::Severity::Critical => Severity::Critical,
    }
}

pub(crate) fn refusal(refusal: wit::Refusal) -> Refusal {
    let wit::Refusal { code, public_message, private_reason } = refusal;
    Refusal { code, public_message, private_reason }
}

pub(crate) fn hints(hints: wit::ToolHints) -> ToolHints {
    ToolHints {
        read_only: hints.read_only,
        destructive: hints.destructive,
        idempotent: hints.idempotent,
        open_world: hints.open_world,
    }
}

/// What a tool said. For programs it stays text: guards are given it so, and nobody here reads it.
pub(crate) fn tool_outcome(outcome: wit::ToolOutcomeResult) -> Result<ToolOutcome, String> {
    let structured = outcome.structured.map(|text| json::plain(&text, "a tool's structured result")).transpose()?;
    let wit::ToolOutcomeResult { call_id, content, is_error, .. } = outcome;
    Ok(ToolOutcome { call_id, content, structured, is_error })
}

pub(crate) fn parts(parts: Vec<wit::PartResult>, values: &mut Values) -> Result<Vec<Part>, String> {
    parts.into_iter().map(|part| self::part(part, values)).collect()
}

fn part(part: wit::PartResult, values: &mut Values) -> Result<Part, String> {
    Ok(match part {
        wit::PartResult::Text(text) => Part::Text(text),
        wit::PartResult::Reasoning(text) => Part::Reasoning(text),
        wit::PartResult::Refusal(text) => Part::Refusal(text),
        wit::PartResult::ToolCall(call) => {
            json::check(&call.arguments, "a tool call's arguments")?;
            Part::ToolCall(ToolCall { id: call.id, name: call.name, arguments: call.arguments })
        }
        wit::PartResult::ToolOutcome(outcome) => Part::ToolOutcome(tool_outcome(outcome)?),
        wit::PartResult::Opaque(part) => {
            Part::Opaque { body: values.read(&part.body, "an opaque part's body")?, kind: part.kind }
        }
        wit::PartResult::Image(_) => return Err("a plugin cannot make an image part; use `opaque`".into()),
        wit::PartResult::Audio(_) => return Err("a plugin cannot make an audio part; use `opaque`".into()),
        wit::PartResult::File(_) => return Err("a plugin cannot make a file part; use `opaque`".into()),
    })
}

pub(crate) fn message(message: wit::MessageResult, values: &mut Values) -> Result<Message, String> {
    let role = match message.role {
        wit::RoleResult::System => Role::System,
        wit::RoleResult::Developer => Role::Developer,
        wit::RoleResult::User => Role::User,
        wit::RoleResult::Assistant => Role::Assistant,
        wit::RoleResult::Tool => Role::Tool,
        wit::RoleResult::Other(other) => return Err(format!("no role `{}`", other.escape_debug())),
    };
    Ok(Message { id: message.id, role, name: message.name, parts: parts(message.parts, values)?, provenance: None })
}
