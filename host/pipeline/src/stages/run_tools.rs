//! Runs the server's tools that a turn called, screens what they answer, and puts both into the conversation. What they say
//! for one answer is bounded ([`ToolRoom`]): the model decides how often it calls them, and all of it is kept until the end.

use crate::chat::Pipeline;
use crate::stage::{Size, Stage};
use crate::stages::start::TurnPlan;
use crate::states::ServerTool;
use std::sync::Arc;
use tidegate_sandbox::Plugin;
use tidegate_sandbox::stage::StageKind;
use tidegate_types::{
    Finding, Message, Part, Provenance, Reject, Report, Role, ToolCall, ToolChoice, ToolOutcome, ToolRun, Transcript,
};

impl Pipeline {
    /// `spoken` is what the model said in the turn beside the calls.
    pub(crate) async fn run_tools(
        &self,
        turn: &mut TurnPlan,
        spoken: Vec<Part>,
        calls: Vec<ToolCall>,
        findings: &mut Vec<Finding>,
    ) -> Result<(), Reject> {
        let mut answers = Vec::with_capacity(calls.len());
        let told = if self.holds_answers(turn.request.chat.stream) { Told::WithoutWords } else { Told::Whole };
        for call in &calls {
            let (source, outcome) = self.run_tool(turn, call).await?;
            let outcome = turn.room.taken(outcome).unwrap_or_else(|why| {
                tracing::warn!(request = %turn.request.cx.request_id, plugin = source,
                    "left out, by pipeline.max_tool_bytes: {why}");
                error(call, why)
            });
            turn.request.cx.note(|report| note(report, told, call, &source, &outcome));
            answers.push(answer(source, outcome, answers.len()));
        }
        let left = self.screen_outside(&turn.request.cx, answers, findings).await?;
        let mut messages = vec![called(spoken, calls.clone())];
        messages
            .extend(left.into_iter().zip(&calls).map(|(answer, call)| answer.map_or_else(|| withheld(call), judged)));
        let chat = Arc::make_mut(&mut turn.request.chat);
        number(&mut messages, &chat.messages);
        chat.messages.append(&mut messages);
        // Held to it in each turn, the model could never answer.
        if forces_ours(&chat.tool_choice, &turn.tools) {
            chat.tool_choice = ToolChoice::Auto;
        }
        Ok(())
    }

    async fn run_tool(&self, turn: &TurnPlan, call: &ToolCall) -> Result<(String, ToolOutcome), Reject> {
        let Some(tool) = turn.tools.iter().find(|tool| tool.def.name == call.name) else {
            return Ok((NOBODY.into(), unknown(turn, call)));
        };
        let stage: &Stage = &self.stages.tools[tool.stage];
        if !is_json(&call.arguments) {
            let why = "the arguments are no JSON; call the tool again, with a JSON object that its schema allows";
            return Ok((stage.name.to_string(), error(call, why.into())));
        }
        let billed = turn.request.charge.as_ref().map(|charge| (charge, charge.tool(&stage.name, &call.name)));
        if let Some((charge, call)) = &billed {
            charge.reserve_calls(&turn.model.name, std::slice::from_ref(call))?;
        }
        let cx = turn.request.cx.call(turn.request.chat.stream, stage.wall);
        // Before it, so that one that ends the request is counted too.
        stage.figures.count_tool(&stage.name, &call.name);
        let asking = async |plugin: &Plugin| plugin.call_tool(&cx, call).await;
        let size = Size::Said(call.arguments.len());
        let outcome = stage.call_about(size, StageKind::ToolProvider, &cx, asking).await?;
        // What the plugin answered is billed, a mistake of the model's too; what failed is not.
        if let (Some((charge, call)), Some(_)) = (billed, &outcome) {
            charge.called(call);
        }
        turn.request.note_lack(&outcome);
        let outcome = outcome.unwrap_or_else(|| error(call, "the tool failed".into()));
        Ok((stage.name.to_string(), outcome))
    }
}

/// How much the server's tools may say yet for one answer.
pub(super) struct ToolRoom {
    limit_bytes: usize,
    left_bytes: usize,
}

impl ToolRoom {
    pub(super) fn of(limit_bytes: usize) -> Self {
        Self { limit_bytes, left_bytes: limit_bytes }
    }

    /// The outcome, where there is room for it; else what the model is told instead, which takes none.
    fn taken(&mut self, outcome: ToolOutcome) -> Result<ToolOutcome, String> {
        let num_bytes = outcome.content.len() + outcome.structured.as_ref().map_or(0, String::len);
        let Self { limit_bytes, left_bytes } = *self;
        let too_long = || {
            format!(
                "the result is too long: it has {num_bytes} bytes, and of the {limit_bytes} that all tools may say for one \
                 answer {left_bytes} are left; ask for less"
            )
        };
        self.left_bytes = left_bytes.checked_sub(num_bytes).ok_or_else(too_long)?;
        Ok(outcome)
    }
}

/// A call of a tool that does not exist is the model's mistake; it is told, and may mend it.
fn unknown(turn: &TurnPlan, call: &ToolCall) -> ToolOutcome {
    let names: Vec<&str> = turn.tools.iter().map(|tool| tool.def.name.as_str()).collect();
    error(call, format!("there is no tool `{}`; there is: {}", call.name, names.join(", ")))
}

fn error(call: &ToolCall, content: String) -> ToolOutcome {
    ToolOutcome { call_id: call.id.clone(), content, structured: None, is_error: true }
}

/// The turn as a message. Servers read the arguments of earlier calls, and many refuse the whole request for what is no
/// JSON; the model is told of it in the outcome.
fn called(mut parts: Vec<Part>, mut calls: Vec<ToolCall>) -> Message {
    for call in calls.iter_mut().filter(|call| !is_json(&call.arguments)) {
        call.arguments = "{}".into();
    }
    parts.extend(calls.into_iter().map(Part::ToolCall));
    Message { id: String::new(), role: Role::Assistant, name: None, parts, provenance: None }
}

/// Whether the caller's choice is one that a call of the server's tools has fulfilled.
fn forces_ours(choice: &ToolChoice, tools: &[ServerTool]) -> bool {
    match choice {
        ToolChoice::Required => true,
        ToolChoice::Named(name) => tools.iter().any(|tool| tool.def.name == *name),
        ToolChoice::Auto | ToolChoice::None => false,
    }
}

pub(super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn answer(source: String, outcome: ToolOutcome, index: usize) -> Message {
    Message {
        id: format!("tool-{index}"),
        role: Role::Tool,
        name: None,
        parts: vec![Part::ToolOutcome(outcome)],
        provenance: Some(Provenance { source, uri: None, span: None }),
    }
}

/// Who runs a tool that nobody has offered.
const NOBODY: &str = "tidegate";

/// What a caller is told of a call. Guards of the whole answer are not asked about calls of the server's tools: where there
/// are some, what the model has worded itself is not told. That is the arguments, and a name that nobody has offered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Whole,
    WithoutWords,
}

fn note(report: &mut Report, told: Told, call: &ToolCall, source: &str, outcome: &ToolOutcome) {
    if told == Told::WithoutWords && source == NOBODY {
        return report.omitted();
    }
    let ToolCall { id, name, arguments } = call.clone();
    let arguments = (told == Told::Whole).then_some(arguments);
    report.ran(ToolRun { call_id: id, name, arguments, source: source.to_owned(), is_error: outcome.is_error });
}

/// What guards have left of an answer. What of it is for programs they alone read: it is not kept for as long as the chat.
fn judged(mut answer: Message) -> Message {
    for part in &mut answer.parts {
        if let Part::ToolOutcome(outcome) = part {
            outcome.structured = None;
        }
    }
    answer
}

fn withheld(call: &ToolCall) -> Message {
    let outcome = error(call, "the result was withheld by a filter of this server".into());
    Message {
        id: String::new(),
        role: Role::Tool,
        name: None,
        parts: vec![Part::ToolOutcome(outcome)],
        provenance: None,
    }
}

/// Numbers what a turn adds on behind what is there, of which some may be left out.
fn number(messages: &mut [Message], before: &[Message]) {
    let taken = before.iter().filter_map(|message| Transcript::own_index(&message.id)).max();
    let from = taken.map_or(0, |last| last.saturating_add(1));
    for (i, message) in messages.iter_mut().enumerate() {
        message.id = format!("m{}", from.saturating_add(i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_guards_of_the_whole_answer_have_not_judged_a_call_nothing_that_the_model_worded_is_told() {
        let call = |name: &str| ToolCall { id: "c".into(), name: name.into(), arguments: "{\"q\":\"secret\"}".into() };
        let outcome = error(&call("search"), "no".into());
        let told = |told: Told| {
            let mut report = Report::default();
            note(&mut report, told, &call("search"), "finder", &outcome);
            note(&mut report, told, &call("secret"), NOBODY, &outcome);
            report
        };
        let whole = told(Told::Whole);
        assert_eq!((whole.tool_runs.len(), whole.omitted), (2, 0));
        assert_eq!(whole.tool_runs[0].arguments, Some(call("search").arguments));
        let without = told(Told::WithoutWords);
        assert_eq!((without.tool_runs.len(), without.omitted), (1, 1));
        assert_eq!((without.tool_runs[0].name.as_str(), &without.tool_runs[0].arguments), ("search", &None));
    }

    #[test]
    fn what_tools_say_for_an_answer_is_so_much_at_most_and_what_is_too_long_takes_no_room() {
        let outcome = |content: &str, structured: Option<&str>| {
            let (content, structured) = (content.to_owned(), structured.map(str::to_owned));
            ToolOutcome { call_id: "c".into(), content, structured, is_error: false }
        };
        let mut room = ToolRoom::of(10);
        room.taken(outcome("four", Some("{}"))).unwrap();
        let why = room.taken(outcome("abc", Some("[]"))).unwrap_err();
        let told = "it has 5 bytes, and of the 10 that all tools may say for one answer 4 are left; ask for less";
        assert_eq!(why, format!("the result is too long: {told}"));
        assert_eq!(room.taken(outcome("four", None)), Ok(outcome("four", None)));
        room.taken(outcome("", None)).unwrap();
        room.taken(outcome("x", None)).unwrap_err();
    }

    #[test]
    fn what_a_tool_says_for_programs_goes_once_guards_have_read_it() {
        let structured = Some("{\"sum\":3}".into());
        let outcome = ToolOutcome { call_id: "c".into(), content: "three".into(), structured, is_error: false };
        let left = judged(answer("adder".into(), outcome.clone(), 0));
        let expected = answer("adder".into(), ToolOutcome { structured: None, ..outcome }, 0);
        assert_eq!((left.parts, left.provenance), (expected.parts, expected.provenance));
    }

    #[test]
    fn what_a_turn_adds_has_numbers_of_its_own() {
        let with = |before: &[&str]| {
            let before: Vec<Message> = before.iter().map(|id| Message::text(*id, Role::User, "x")).collect();
            let mut added = vec![Message::text("", Role::Assistant, "y"), Message::text("", Role::Tool, "z")];
            number(&mut added, &before);
            added.into_iter().map(|message| message.id).collect::<Vec<_>>()
        };
        assert_eq!(with(&["m0", "folder/a"]), ["m1", "m2"]);
        assert_eq!(with(&["instructions", "h0", "m0", "m3"]), ["m4", "m5"], "items that were joined left holes");
        assert_eq!(with(&["h0"]), ["m0", "m1"]);
        assert_eq!(with(&["m0", "m18446744073709551615", "m+7", "m007"]), ["m1", "m2"], "those are nobody's numbers");
    }
}
