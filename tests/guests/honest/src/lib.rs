//! Exports every stage and does as the text says, within the contract; without such words it has no opinion. It counts
//! its calls, so that a test sees whether an instance was reused, and its carry counts the windows of a stream. As a prompt
//! guard it ends badly where it is told to (`trap`, `loop`, `hoard`), for tests of what becomes of its instance then.
//!
//! Config: `{"refuse": true}` is refused by `configure`, and `refuse` that is no boolean by the schema; `{"spin": true}` makes
//! `configure` never end, `{"linger": "observer"}` (or `remember`) that function;
//! `{"output": "refuse"}` (or `respond`, `shout`) is what it does to answers, `{"prompt": "respond"}` to every prompt,
//! `{"trap": "memory"}` the stage in which it traps; `tool-list` is a tool provider that is asked what it brings.

wit_bindgen::generate!({
    path: "../../../wit",
    inline: "
        package guests:honest;
        world honest {
            include tidegate:plugin/prompt-guard-plugin@0.1.0;
            include tidegate:plugin/stream-guard-plugin@0.1.0;
            include tidegate:plugin/router-plugin@0.1.0;
            include tidegate:plugin/tool-plugin@0.1.0;
            include tidegate:plugin/retriever-plugin@0.1.0;
            include tidegate:plugin/output-guard-plugin@0.1.0;
            include tidegate:plugin/memory-plugin@0.1.0;
            include tidegate:plugin/observer-plugin@0.1.0;
        }
    ",
    world: "guests:honest/honest",
    generate_all,
    disable_run_ctors_once_workaround: true,
});

use exports::tidegate::plugin::{
    memory, meta, observer, output_guard, prompt_guard, retriever, router, stream_guard, tool_provider,
};
use memory::{Exchange, Item, Question};
use observer::Summary;
use output_guard::Output;
use prompt_guard::Prompt;
use retriever::{Chunk, Query};
use router::{Candidate, Decision, Request};
use std::cell::{Cell, RefCell};
use stream_guard::{Halting, Inspection, Redaction, Window, WindowAction};
use tidegate::plugin::types::{
    Action, Context, Edit, Error, Finding, Message, Part, Refusal, Severity, Span, TextEdit, ToolCall, ToolDef,
    ToolHints, ToolOutcome, Verdict,
};

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
    static CONFIG: RefCell<String> = const { RefCell::new(String::new()) };
    static RESPONDS: Cell<bool> = const { Cell::new(false) };
}

struct Component;

impl meta::Guest for Component {
    fn describe() -> String {
        let more = ",\"stream\":{\"holdback-bytes\":64},\"metrics\":[{\"name\":\"told\",\"summary\":\"summaries\"}]";
        let any = "\"additionalProperties\":true";
        let with_refuse = format!("{any},\"properties\":{{\"refuse\":{{\"type\":\"boolean\"}}}}");
        kit::descriptor_with("honest", true, more).replace(any, &with_refuse)
    }

    fn configure(config: String) -> Result<(), Error> {
        while config.contains("\"spin\":true") {
            std::hint::spin_loop();
        }
        if config.contains("\"refuse\":true") {
            return Err(Error::InvalidConfig("as the test asked".into()));
        }
        RESPONDS.set(config.contains("\"prompt\":\"respond\""));
        CONFIG.with(|kept| *kept.borrow_mut() = config);
        kit::calls_begin();
        Ok(())
    }
}

impl prompt_guard::Guest for Component {
    fn inspect_prompt(ctx: Context, prompt: Prompt) -> Result<Verdict, Error> {
        trap_if("prompt-guard");
        let calls = count();
        let last = prompt.messages.last();
        let text = last.and_then(|message| message.parts.iter().find_map(text_of)).unwrap_or_default();
        let action = match if RESPONDS.get() { "respond" } else { text } {
            "fail" => return Err(Error::Unavailable("as the test asked".into())),
            "refuse" => Action::Refuse(refusal()),
            "respond" => Action::Respond(vec![Part::Text("from the guard".into())]),
            "context" => Action::Respond(vec![Part::Text(show_context(&ctx))]),
            "echo" => Action::Respond(vec![Part::Text(format!(
                "{:?} {:?} {:?}",
                prompt.messages, prompt.tools, prompt.params
            ))]),
            "calls" => Action::Respond(vec![Part::Text(calls.to_string())]),
            "rewrite" => Action::Rewrite(last.map(shout).into_iter().collect()),
            "trap" => panic!("as the test asked"),
            "loop" => loop {
                std::hint::spin_loop();
            },
            "hoard" => {
                // More than any instance may have.
                std::hint::black_box(vec![1u8; 1 << 30]);
                Action::Allow
            }
            _ => Action::Allow,
        };
        let findings = match text {
            "flag" => vec![finding(last.map(|message| message.id.clone()), Span { start: 0, end: 4 })],
            _ => Vec::new(),
        };
        Ok(Verdict { action, findings, attrs: Vec::new() })
    }
}

impl stream_guard::Guest for Component {
    fn inspect_window(_: Context, mut carry: Vec<u8>, window: Window) -> Result<Inspection, Error> {
        trap_if("stream-guard");
        count();
        match carry.first_mut() {
            Some(seen) => *seen = seen.wrapping_add(1),
            None => carry.push(1),
        }
        let (settled, text) = (window.settled as usize, &window.text);
        let mut findings = Vec::new();
        let action = if text.len() < settled + 4 {
            WindowAction::Pass
        } else if let Some(at) = text[settled..].find("####") {
            let start = (settled + at) as u32;
            findings.push(finding(None, Span { start, end: start + 4 }));
            WindowAction::Redact(vec![Redaction { span: Span { start, end: start + 4 }, text: "[]".into() }])
        } else if text[settled..].contains("HALT") {
            WindowAction::Halt(Halting { refusal: refusal(), farewell: Some("bye".into()) })
        } else {
            WindowAction::Pass
        };
        Ok(Inspection { action, safe_through: text.len() as u32, carry, findings, attrs: Vec::new() })
    }
}

impl router::Guest for Component {
    fn route(_: Context, request: Request, candidates: Vec<Candidate>) -> Result<Decision, Error> {
        trap_if("router");
        let order = candidates.iter().rev().filter(|c| c.context_tokens >= request.prompt_tokens).map(|c| c.id.clone());
        let reason = format!("{} findings, {} attrs", request.findings.len(), request.attrs.len());
        Ok(Decision { order: order.collect(), reason, attrs: Vec::new() })
    }
}

impl tool_provider::Guest for Component {
    fn list_tools(_: Context) -> Result<Vec<ToolDef>, Error> {
        trap_if("tool-list");
        let hints = ToolHints { read_only: true, destructive: false, idempotent: true, open_world: false };
        Ok(vec![ToolDef {
            name: "echo".into(),
            description: "Says what it was told".into(),
            input_schema: "{\"type\":\"object\"}".into(),
            hints,
            attrs: Vec::new(),
        }])
    }

    fn call_tool(_: Context, call: ToolCall) -> Result<ToolOutcome, Error> {
        trap_if("tool-provider");
        if call.name != "echo" {
            return Err(Error::InvalidInput(format!("no tool `{}`", call.name)));
        }
        let structured = Some(call.arguments.clone());
        Ok(ToolOutcome { call_id: call.id, content: call.arguments, structured, is_error: false })
    }
}

impl retriever::Guest for Component {
    fn retrieve(_: Context, query: Query) -> Result<Vec<Chunk>, Error> {
        trap_if("retriever");
        let chunk = |index| Chunk {
            id: format!("c{index}"),
            text: format!("about {}", query.text),
            uri: Some("docs/a.txt".into()),
            title: None,
            score: Some(1.0 / (index + 1) as f32),
            origin: Some(Span { start: 3, end: 9 }),
            attrs: Vec::new(),
        };
        Ok((0..query.top_k.min(3)).map(chunk).collect())
    }
}

impl output_guard::Guest for Component {
    fn inspect_output(_: Context, output: Output) -> Result<Verdict, Error> {
        trap_if("output-guard");
        let action = if is_configured("output", "refuse") {
            Action::Refuse(refusal())
        } else if is_configured("output", "respond") {
            let said: Vec<String> = output.choices.iter().map(|choice| format!("{:?}", choice.parts)).collect();
            let shown = format!("{} {:?} {:?} {:?}", said.join(";"), output.finish_reasons, output.usage, output.attrs);
            Action::Respond(vec![Part::Text(shown)])
        } else if is_configured("output", "shout") {
            Action::Rewrite(output.choices.iter().map(shout).collect())
        } else {
            Action::Allow
        };
        Ok(Verdict { action, findings: Vec::new(), attrs: Vec::new() })
    }
}

impl memory::Guest for Component {
    fn recall(_: Context, question: Question) -> Result<Vec<Item>, Error> {
        trap_if("memory");
        let item = |index| Item {
            id: format!("i{index}"),
            text: format!("known of {}", question.text),
            score: Some(0.5),
            attrs: Vec::new(),
        };
        Ok((0..question.limit.min(2)).map(item).collect())
    }

    fn remember(_: Context, exchange: Exchange) -> Result<Vec<Item>, Error> {
        linger_if("remember");
        let item = |message: &Message| Item {
            id: message.id.clone(),
            text: message.parts.iter().filter_map(text_of).collect(),
            score: None,
            attrs: Vec::new(),
        };
        Ok(exchange.messages.iter().map(item).collect())
    }

    fn forget(_: Context, ids: Vec<String>) -> Result<u32, Error> {
        Ok(ids.len() as u32)
    }
}

impl observer::Guest for Component {
    fn on_complete(_: Context, summary: Summary) -> Result<(), Error> {
        trap_if("observer");
        linger_if("observer");
        tidegate::plugin::metrics::count("told", 1);
        tidegate::plugin::log::write(tidegate::plugin::log::Level::Info, &format!("{summary:?}"), &[]);
        Ok(())
    }
}

/// Costs nothing where nothing is: benchmarks take this guest for one that does nothing.
fn is_configured(key: &str, value: &str) -> bool {
    CONFIG.with(|config| {
        let config = config.borrow();
        *config != "{}" && config.contains(&format!("\"{key}\":\"{value}\""))
    })
}

fn trap_if(stage: &str) {
    assert!(!is_configured("trap", stage), "as the test asked");
}

fn linger_if(function: &str) {
    while is_configured("linger", function) {
        std::hint::spin_loop();
    }
}

fn count() -> u32 {
    CALLS.with(|calls| {
        calls.set(calls.get() + 1);
        calls.get()
    })
}

fn text_of(part: &Part) -> Option<&str> {
    match part {
        Part::Text(text) => Some(text),
        _ => None,
    }
}

fn shout(message: &Message) -> Edit {
    let text = message.parts.iter().find_map(text_of).unwrap_or_default();
    let span = Span { start: 0, end: text.len() as u32 };
    Edit::ReplaceText(TextEdit { message_id: message.id.clone(), part: 0, span, text: text.to_uppercase() })
}

fn finding(message_id: Option<String>, span: Span) -> Finding {
    Finding {
        category: "x-test:flag".into(),
        severity: Severity::Low,
        score: Some(0.5),
        message_id,
        span: Some(span),
        attrs: Vec::new(),
    }
}

fn refusal() -> Refusal {
    Refusal { code: "test".into(), public_message: "no".into(), private_reason: Some("as the test asked".into()) }
}

fn show_context(ctx: &Context) -> String {
    format!("{} {} {} {}", ctx.request_id, ctx.caller, ctx.deadline_ms, ctx.streaming)
}

export!(Component);
