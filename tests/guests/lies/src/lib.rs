//! Breaks the contract in the way that the text names, with results that no honest guest returns. Each must end in an
//! error that says how.

wit_bindgen::generate!({
    path: "../../../wit",
    inline: "
        package guests:lies;
        world lies {
            include tidegate:plugin/prompt-guard-plugin@0.1.0;
            include tidegate:plugin/stream-guard-plugin@0.1.0;
            include tidegate:plugin/router-plugin@0.1.0;
            include tidegate:plugin/tool-plugin@0.1.0;
            include tidegate:plugin/retriever-plugin@0.1.0;
            include tidegate:plugin/output-guard-plugin@0.1.0;
            include tidegate:plugin/memory-plugin@0.1.0;
        }
    ",
    world: "guests:lies/lies",
    generate_all,
});

use exports::tidegate::plugin::{memory, output_guard, prompt_guard, retriever, router, stream_guard, tool_provider};
use memory::{Exchange, Item, Question};
use output_guard::Output;
use prompt_guard::Prompt;
use retriever::{Chunk, Query};
use router::{Candidate, Decision, Request};
use stream_guard::{Inspection, Redaction, Window, WindowAction};
use tidegate::plugin::types::{
    Action, Context, Edit, Error, Finding, Insertion, Media, MediaSource, Message, Part, Role, Severity, Span,
    TextEdit, ToolCall, ToolDef, ToolHints, ToolOutcome, Verdict,
};

struct Component;

kit::meta!(Component, "lies");

impl prompt_guard::Guest for Component {
    fn inspect_prompt(_: Context, prompt: Prompt) -> Result<Verdict, Error> {
        let lie = first_text(&prompt.messages);
        let finding = |message: Option<&str>, start, end| vec![finding(message, start, end, 0.5)];
        let findings = match lie {
            "finding: no message" => finding(Some("m9"), 0, 1),
            "finding: span without message" => finding(None, 0, 1),
            "finding: out of range" => finding(Some("m0"), 0, 9999),
            "finding: backwards" => finding(Some("m0"), 2, 1),
            "finding: score" => vec![self::finding(Some("m0"), 0, 1, f32::NAN)],
            "finding: many" => vec![self::finding(Some("m0"), 0, 1, 0.5); 257],
            _ => Vec::new(),
        };
        let action = match lie {
            "respond: image" => Action::Respond(vec![Part::Image(Media {
                mime: "image/png".into(),
                source: MediaSource::Url("http://example.com".into()),
            })]),
            "respond: a call" => Action::Respond(vec![Part::ToolCall(ToolCall {
                id: "c".into(),
                name: "f".into(),
                arguments: "{}".into(),
            })]),
            _ => match edits(lie) {
                edits if edits.is_empty() => Action::Allow,
                edits => Action::Rewrite(edits),
            },
        };
        Ok(Verdict { action, findings, attrs: Vec::new() })
    }
}

fn first_text(messages: &[Message]) -> &str {
    match messages.first().and_then(|message| message.parts.first()) {
        Some(Part::Text(text)) => text,
        _ => "",
    }
}

/// `lie` is also the text of message `m0`.
fn edits(lie: &str) -> Vec<Edit> {
    let replace = |message: &str, part, start, end| {
        Edit::ReplaceText(TextEdit { message_id: message.into(), part, span: Span { start, end }, text: "x".into() })
    };
    let put = |id: &str, after: Option<&str>, role: Role| {
        let message = Message { id: id.into(), role, name: None, parts: Vec::new(), attrs: Vec::new() };
        Edit::PutMessage(Insertion { after: after.map(Into::into), message })
    };
    let drop = |id: &str| Edit::DropMessage(id.into());
    match lie {
        "edit: no message" => vec![replace("m9", 0, 0, 0)],
        "edit: no part" => vec![replace("m0", 7, 0, 0)],
        "edit: out of range" => vec![replace("m0", 0, 0, 9999)],
        "edit: cuts ü" => vec![replace("m0", 0, 0, 12)],
        "edit: overlap" => vec![replace("m0", 0, 0, 3), replace("m0", 0, 2, 4)],
        "put: one" => vec![put("n", None, Role::User)],
        "put: id taken" => vec![put("m0", None, Role::User)],
        "put: id twice" => vec![put("n", None, Role::User), put("n", None, Role::User)],
        "put: after nobody" => vec![put("n", Some("m9"), Role::User)],
        "put: role" => vec![put("n", None, Role::Other("king".into()))],
        "put: after one that was dropped" => {
            vec![put("n", None, Role::User), drop("m0"), put("o", Some("m0"), Role::User)]
        }
        "put: id of one that was dropped" => vec![put("n", None, Role::User), drop("m0"), put("m0", None, Role::User)],
        "drop: no message" => vec![drop("m9")],
        "drop: twice" => vec![put("n", None, Role::User), drop("m0"), drop("m0")],
        "drop: a new one twice" => vec![put("n", None, Role::User), drop("n"), drop("n")],
        "drop: all" => vec![drop("m0")],
        "drop: all and a new one" => vec![put("n", Some("m0"), Role::User), drop("n"), drop("m0")],
        "the truth about edits" => vec![
            put("n", Some("m0"), Role::User),
            put("o", Some("n"), Role::User),
            drop("n"),
            drop("m0"),
            put("p", Some("o"), Role::User),
        ],
        "arguments: no call" => vec![Edit::SetArguments(("c9".into(), "{}".into()))],
        "param" => vec![Edit::SetParam(("temperature".into(), "1".into()))],
        _ => Vec::new(),
    }
}

fn finding(message: Option<&str>, start: u32, end: u32, score: f32) -> Finding {
    Finding {
        category: "x-test:lie".into(),
        severity: Severity::Critical,
        score: Some(score),
        message_id: message.map(Into::into),
        span: Some(Span { start, end }),
        attrs: Vec::new(),
    }
}

impl stream_guard::Guest for Component {
    fn inspect_window(_: Context, _: Vec<u8>, window: Window) -> Result<Inspection, Error> {
        let len = window.text.len() as u32;
        let redact = |spans: &[(u32, u32)]| {
            let redaction = |&(start, end): &(u32, u32)| Redaction { span: Span { start, end }, text: "x".into() };
            WindowAction::Redact(spans.iter().map(redaction).collect())
        };
        let mut inspection = Inspection {
            action: WindowAction::Pass,
            safe_through: len,
            carry: Vec::new(),
            findings: Vec::new(),
            attrs: Vec::new(),
        };
        // The last word of the text names the lie; what is before it is there to be lied about.
        match window.text.rsplit(' ').next().unwrap_or_default() {
            "watermark-high" => inspection.safe_through = len + 1,
            "watermark-low" => inspection.safe_through = window.settled - 1,
            "unsafe" => {
                inspection.safe_through = window.settled;
                inspection.action = redact(&[(window.settled, len)]);
            }
            "watermark-inside" => inspection.safe_through = window.text.find('ü').unwrap_or(0) as u32 + 1,
            "carry" => inspection.carry = vec![0; (16 << 10) + 1],
            "settled" => inspection.action = redact(&[(0, len)]),
            "range" => inspection.action = redact(&[(window.settled, len + 1)]),
            "character" => inspection.action = redact(&[(window.text.find('ü').unwrap_or(0) as u32 + 1, len)]),
            "overlap" => inspection.action = redact(&[(window.settled, len), (len - 1, len)]),
            "unsorted" => inspection.action = redact(&[(len - 1, len), (window.settled, window.settled + 1)]),
            "finding" => inspection.findings = vec![finding(None, len, len + 1, 0.5)],
            // Of a tool call's arguments: what is left of them ends in the middle.
            "spoilt\"}" => inspection.action = redact(&[(len - 1, len)]),
            _ => {}
        }
        Ok(inspection)
    }
}

impl router::Guest for Component {
    fn route(_: Context, request: Request, candidates: Vec<Candidate>) -> Result<Decision, Error> {
        let first = candidates.first().map(|candidate| candidate.id.clone()).unwrap_or_default();
        let order = match request.prompt_tokens {
            0 => Vec::new(),
            1 => vec!["nobody".into()],
            2 => vec![first.clone(), first],
            _ => vec![first],
        };
        Ok(Decision { order, reason: String::new(), attrs: Vec::new() })
    }
}

impl tool_provider::Guest for Component {
    fn list_tools(ctx: Context) -> Result<Vec<ToolDef>, Error> {
        let hints = ToolHints { read_only: true, destructive: false, idempotent: true, open_world: false };
        let tool = |name: &str, schema: &str| ToolDef {
            name: name.into(),
            description: String::new(),
            input_schema: schema.into(),
            hints,
            attrs: Vec::new(),
        };
        Ok(match ctx.request_id.as_str() {
            "name" => vec![tool("no spaces allowed", "{}")],
            "empty" => vec![tool("", "{}")],
            "twice" => vec![tool("a", "{}"), tool("a", "{}")],
            "schema" => vec![tool("a", "{")],
            "schema-kind" => vec![tool("a", "[]")],
            "many" => vec![tool("a", "{}"); 129],
            _ => vec![tool("a", "{}")],
        })
    }

    fn call_tool(_: Context, call: ToolCall) -> Result<ToolOutcome, Error> {
        let (call_id, structured) = match call.name.as_str() {
            "another" => ("another".into(), None),
            "structured" => (call.id, Some("{".into())),
            _ => (call.id, None),
        };
        Ok(ToolOutcome { call_id, content: String::new(), structured, is_error: false })
    }
}

impl retriever::Guest for Component {
    fn retrieve(_: Context, query: Query) -> Result<Vec<Chunk>, Error> {
        let chunk = |id: &str, score: f32, origin: Span| Chunk {
            id: id.into(),
            text: String::new(),
            uri: None,
            title: None,
            score: Some(score),
            origin: Some(origin),
            attrs: Vec::new(),
        };
        let span = Span { start: 0, end: 1 };
        Ok(match query.text.as_str() {
            "many" => (0..=query.top_k).map(|n| chunk(&n.to_string(), 1.0, span)).collect(),
            "twice" => vec![chunk("a", 1.0, span), chunk("a", 1.0, span)],
            "empty" => vec![chunk("", 1.0, span)],
            "score" => vec![chunk("a", f32::NAN, span)],
            "origin" => vec![chunk("a", 1.0, Span { start: 2, end: 1 })],
            _ => Vec::new(),
        })
    }
}

impl output_guard::Guest for Component {
    fn inspect_output(_: Context, output: Output) -> Result<Verdict, Error> {
        let action = Action::Rewrite(edits(first_text(&output.choices)));
        Ok(Verdict { action, findings: Vec::new(), attrs: Vec::new() })
    }
}

impl memory::Guest for Component {
    fn recall(_: Context, question: Question) -> Result<Vec<Item>, Error> {
        Ok(items(&question.text, question.limit))
    }

    fn remember(_: Context, exchange: Exchange) -> Result<Vec<Item>, Error> {
        Ok(items(first_text(&exchange.messages), 256))
    }

    fn forget(_: Context, ids: Vec<String>) -> Result<u32, Error> {
        Ok(ids.len() as u32 + 1)
    }
}

/// Where no more than `most` may be given.
fn items(lie: &str, most: u32) -> Vec<Item> {
    let item = |id: &str, score| Item { id: id.into(), text: String::new(), score, attrs: Vec::new() };
    let so_many = |count: u32| (0..count).map(|n| item(&n.to_string(), None)).collect();
    match lie {
        "many" => so_many(most + 1),
        "empty" => vec![item("", None)],
        "twice" => vec![item("a", None), item("b", None), item("a", None)],
        "score" => vec![item("a", Some(f32::NAN))],
        _ => so_many(most),
    }
}

export!(Component);
