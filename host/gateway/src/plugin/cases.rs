//! One case: a call of one function, and its outcome as JSON. Read next: `cases/expected.rs`, which compares that with what the
//! case expects. What a guard says of a prompt at a glance is held to that in `cases/glance.rs`, of a stream in `stream.rs`.

mod expected;
mod glance;

pub(super) use expected::{differences, left_out, not_offered};
pub(super) use glance::hold_glance;

use super::fixture::{self, Ask, Route, Told, Tool};
use super::stream::{self, Reading};
use super::workbench::{World, context};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tidegate_pipeline::apply_edits;
use tidegate_sandbox::Plugin;
use tidegate_sandbox::stage::{
    Action, CallError, Candidate, Chunk, Decision, Exchange, MemoryItem, Output, Prompt, Query, Question, RouteRequest,
    Summary, Verdict,
};
use tidegate_types::{Caller, Finding, Message, Part, Role, ToolCall, ToolDef, ToolOutcome, Usage};

/// The outcome of a call: `error` where it failed. A stream guard may withhold so many bytes.
pub(super) async fn outcome(world: &World, ask: &Ask, holdback_bytes: usize) -> anyhow::Result<(Value, usize)> {
    if let Ask::Stream(text) = ask {
        let Reading { outcome, chunkings } = stream::read(world, text, holdback_bytes).await?;
        return Ok((outcome, chunkings));
    }
    let said = said(world, ask).await.and_then(|said| said.outcome(&world.plugin));
    Ok((said.unwrap_or_else(|error| json!({"error": error.to_string()})), 1))
}

/// What a plugin says to a call.
pub(super) enum Said<'a> {
    /// Of these messages.
    Verdict(Verdict, &'a [Message]),
    Order(Decision),
    /// Beside the tools that it offers.
    Tool(Vec<ToolDef>, ToolOutcome),
    Found(Vec<Chunk>),
    Items(Vec<MemoryItem>),
    Forgotten(u32),
    Seen,
    /// Taken by `outcome`.
    Stream,
}

/// One call, of all but streams.
pub(super) async fn said<'a>(world: &World, ask: &'a Ask) -> Result<Said<'a>, CallError> {
    let (plugin, ctx) = (&*world.plugin, context(is_streamed(ask)));
    Ok(match ask {
        Ask::Prompt(fixture::Prompt { messages, tools, params }) => {
            let said = match &messages[..] {
                // Text from outside comes alone, and what is noted of it nobody is told.
                [message] if message.provenance.is_some() => plugin.inspect_outside(&ctx, message).await?,
                messages => {
                    let said = plugin.inspect_prompt(&ctx, Prompt { messages, tools, params }).await?;
                    world.notes.borrow_mut().clone_from(&said.notes);
                    said
                }
            };
            Said::Verdict(said, messages)
        }
        Ask::Output(said) => {
            let choices = std::slice::from_ref(&said.message);
            let finish_reasons = [said.finish_reason.as_str()];
            let output = Output { choices, finish_reasons: &finish_reasons, usage: None, attrs: &said.attrs };
            Said::Verdict(plugin.inspect_output(&ctx, output).await?, choices)
        }
        Ask::Route(route) => Said::Order(routed(plugin, route).await?),
        Ask::Tool(tool) => {
            let tools = plugin.list_tools(&ctx).await?;
            Said::Tool(tools, call_tool(plugin, tool).await?)
        }
        Ask::Retrieve(fixture::Question { text, top_k }) => {
            Said::Found(plugin.retrieve(&ctx, &Query { text: text.clone(), top_k: *top_k }).await?)
        }
        Ask::Remember(fixture::Exchange { said, attrs }) => {
            let [question, answer] = said;
            let messages = [Message::text("m0", Role::User, question), Message::text("m1", Role::Assistant, answer)];
            let attrs = [&attrs[..], &world.notes.take()[..]].concat();
            Said::Items(plugin.remember(&ctx, Exchange { messages: &messages, attrs: &attrs }).await?)
        }
        Ask::Recall(fixture::Question { text, top_k }) => {
            Said::Items(plugin.recall(&ctx, Question { text, limit: *top_k }).await?)
        }
        Ask::Forget(ids) => {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            Said::Forgotten(plugin.forget(&ctx, &ids).await?)
        }
        Ask::Observe(told) => {
            plugin.on_complete(&ctx, summary(told)).await?;
            Said::Seen
        }
        Ask::Stream(_) => Said::Stream,
    })
}

/// Whether a server says that the answer is read as a stream. What is no part of answering is not, nor is text from outside.
fn is_streamed(ask: &Ask) -> bool {
    match ask {
        Ask::Prompt(fixture::Prompt { messages, .. }) => !matches!(&messages[..], [one] if one.provenance.is_some()),
        Ask::Remember(_) | Ask::Forget(_) => false,
        Ask::Observe(told) => told.attrs.contains(&("stream".into(), "true".into())),
        _ => true,
    }
}

impl Said<'_> {
    /// As a case expects it.
    fn outcome(self, plugin: &Plugin) -> Result<Value, CallError> {
        Ok(match self {
            Self::Verdict(said, messages) => verdict(plugin, said, messages.to_vec())?,
            Self::Order(decision) => json!({"order": decision.order, "reason": decision.reason}),
            Self::Tool(tools, ToolOutcome { content, is_error, structured, .. }) => {
                let tools: Vec<_> = tools.into_iter().map(|tool| tool.name).collect();
                let structured: Option<Value> = structured.and_then(|json| serde_json::from_str(&json).ok());
                json!({"tools": tools, "content": content, "is_error": is_error, "structured": structured})
            }
            Self::Found(found) => {
                let ids: Vec<_> = found.iter().map(|chunk| &chunk.id).collect();
                let texts: Vec<_> = found.iter().map(|chunk| &chunk.text).collect();
                let scores: Vec<_> = found.iter().map(|chunk| chunk.score).collect();
                json!({"ids": ids, "texts": texts, "scores": scores})
            }
            Self::Items(items) => {
                let ids: Vec<_> = items.iter().map(|item| &item.id).collect();
                json!({"ids": ids, "texts": items.iter().map(|item| &item.text).collect::<Vec<_>>()})
            }
            Self::Forgotten(count) => json!({"count": count}),
            Self::Seen => json!({"seen": true}),
            Self::Stream => Value::Null,
        })
    }
}

/// `messages` as the verdict leaves them, with the edits that a server makes, and `text`, that of the last one; of a refusal
/// neither, since nothing of them goes on.
fn verdict(plugin: &Plugin, verdict: Verdict, mut messages: Vec<Message>) -> Result<Value, CallError> {
    let mut outcome = json!({"findings": categories(&verdict.findings), "attrs": table(&verdict.notes)});
    let action = match verdict.action {
        Action::Allow => "allow",
        Action::Rewrite(edits) => {
            apply_edits(&mut messages, edits)
                .map_err(|message| CallError::BadResult { plugin: plugin.name().to_owned(), message })?;
            "rewrite"
        }
        Action::Respond(parts) => {
            messages = vec![Message { parts, ..Message::text("answer", Role::Assistant, "") }];
            "respond"
        }
        Action::Refuse(refusal) => {
            outcome["action"] = "refuse".into();
            outcome["code"] = refusal.code.into();
            outcome["message"] = refusal.public_message.into();
            return Ok(outcome);
        }
    };
    outcome["action"] = action.into();
    outcome["text"] = messages.last().map(text_of).into();
    outcome["messages"] = messages.iter().map(shown).collect();
    Ok(outcome)
}

/// What a guard notes for its own memory, as a case hands it on.
fn table(attrs: &[(String, String)]) -> Map<String, Value> {
    attrs.iter().map(|(key, json)| (key.clone(), serde_json::from_str(json).unwrap_or(Value::Null))).collect()
}

/// A message as a case says one.
fn shown(message: &Message) -> Value {
    let mut shown = json!({"role": message.role, "text": text_of(message)});
    let mut calls = Vec::new();
    for part in &message.parts {
        match part {
            Part::ToolCall(call) => calls.push(json!(call)),
            Part::ToolOutcome(outcome) => shown["call_id"] = outcome.call_id.as_str().into(),
            _ => {}
        }
    }
    let joined = |of: fn(&Part) -> Option<&str>| message.parts.iter().filter_map(of).collect::<Vec<_>>();
    let reasoning = joined(|part| if let Part::Reasoning(text) = part { Some(text) } else { None });
    let refusal = joined(|part| if let Part::Refusal(text) = part { Some(text) } else { None });
    for (name, texts) in [("reasoning", reasoning), ("refusal", refusal)] {
        if !texts.is_empty() {
            shown[name] = texts.concat().into();
        }
    }
    if !calls.is_empty() {
        shown["tool_calls"] = calls.into();
    }
    if let Some(from) = &message.provenance {
        shown["source"] = from.source.as_str().into();
    }
    if let Some(Passage { file, title, .. }) = passage(message) {
        let is_uri = message.provenance.as_ref().is_some_and(|from| from.uri.is_some());
        shown[if is_uri { "uri" } else { "id" }] = file.into();
        title.into_iter().for_each(|title| shown["title"] = title.into());
    }
    shown
}

/// The parts of a passage, as [`tidegate_pipeline::passage`] makes them and a guard leaves them.
struct Passage<'a> {
    text: &'a str,
    /// Its `uri`, or the chunk's id.
    file: &'a str,
    title: Option<&'a str>,
}

fn passage(message: &Message) -> Option<Passage<'_>> {
    message.provenance.as_ref()?;
    match &message.parts[..] {
        [Part::Text(text), Part::Text(file)] => Some(Passage { text, file, title: None }),
        [Part::Text(text), Part::Text(file), Part::Text(title)] => Some(Passage { text, file, title: Some(title) }),
        _ => None,
    }
}

/// Its text, or what its tool says; of a passage without what is told of its document.
fn text_of(message: &Message) -> String {
    if let Some(passage) = passage(message) {
        return passage.text.to_owned();
    }
    let text = |part: &Part| match part {
        Part::Text(text) => Some(text.clone()),
        Part::ToolOutcome(outcome) => Some(outcome.content.clone()),
        _ => None,
    };
    message.parts.iter().filter_map(text).collect()
}

async fn routed(plugin: &Plugin, route: &Route) -> Result<Decision, CallError> {
    let findings: Vec<Finding> = route.findings.iter().map(Finding::from).collect();
    let told = [("class", json!(Caller::local().class)), ("key", json!("")), ("tools", json!(false))];
    let attrs = fixture::with_defaults(route.attrs.clone(), told);
    let request =
        RouteRequest { messages: &route.prompt.0, prompt_tokens: route.tokens, findings: &findings, attrs: &attrs };
    let candidates = route.candidates.iter().map(|candidate| Candidate {
        id: candidate.id.clone(),
        model: candidate.id.clone(),
        healthy: candidate.healthy,
        context_tokens: candidate.context,
        attrs: fixture::attrs(&candidate.attrs),
    });
    plugin.route(&context(true), request, &candidates.collect::<Vec<_>>()).await
}

/// A tool's call alone, without the list that a server asks for before.
pub(super) async fn call_tool(plugin: &Plugin, tool: &Tool) -> Result<ToolOutcome, CallError> {
    let call = ToolCall { id: "call-0".into(), name: tool.name.clone(), arguments: tool.arguments.text() };
    plugin.call_tool(&context(true), &call).await
}

fn summary(told: &Told) -> Summary<'_> {
    Summary {
        outcome: &told.outcome,
        detail: &told.detail,
        model: fixture::MODEL,
        usage: Usage { input_tokens: 10, cached_tokens: 0, output_tokens: 20, ..Default::default() },
        first: Some(Duration::from_millis(5)),
        total: Duration::from_millis(50),
        findings: &told.findings,
        attrs: &told.attrs,
    }
}

pub(super) fn categories(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.category.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_message_says_is_shown() {
        let mut message = Message::text("m", tidegate_types::Role::Assistant, "a");
        message.parts.extend(["b", "c"].map(|text| Part::Reasoning(text.into())));
        assert_eq!((&shown(&message)["reasoning"], shown(&message).get("refusal")), (&json!("bc"), None));
    }

    /// As a server has it: what is no part of answering is of no stream.
    #[test]
    fn a_call_is_told_of_a_stream_where_there_may_be_one() {
        for (ask, expected) in [
            (json!({"prompt": "a"}), true),
            (json!({"prompt": [{"role": "tool", "text": "a", "source": "folder"}]}), false),
            (json!({"remember": ["a", "b"]}), false),
            (json!({"forget": ["a"]}), false),
            (json!({"recall": "a"}), true),
            (json!({"observe": "answered"}), false),
            (json!({"observe": {"outcome": "answered", "attrs": {"stream": true}}}), true),
        ] {
            assert_eq!(is_streamed(&serde_json::from_value(ask.clone()).unwrap()), expected, "{ask}");
        }
    }
}
