//! Tool calls of a turn at the stream guards: what of them a model words itself is judged before anybody sees it. That is the
//! arguments, and a name that nobody has offered; the id is of the server that answers, and leaves as it is.

use super::Conversation;
use super::speech::asking;
use crate::stages::screen_output::{OutputScreen, Piece};
use crate::stages::start::TurnPlan;
use std::collections::HashMap;
use tidegate_sandbox::stage::Channel;
use tidegate_types::{FinishReason, Reject, ToolCall};

/// Ids under which the guards are asked about the calls of an answer, each with how many are made of it. Some models begin anew
/// in each turn or choice: a call whose id an earlier one has is seen under another.
#[derive(Default)]
pub(super) struct SeenIds(HashMap<String, usize>);

impl SeenIds {
    fn of_next(&mut self, own: &str) -> String {
        let Some(mut number) = self.0.get(own).copied() else { return self.add(own.to_owned()) };
        let another = loop {
            number += 1;
            let numbered = format!("{own}~{number}");
            if !self.0.contains_key(&numbered) {
                break numbered;
            }
        };
        self.0.insert(own.to_owned(), number);
        self.add(another)
    }

    fn add(&mut self, id: String) -> String {
        self.0.insert(id.clone(), 1);
        id
    }
}

impl Conversation {
    /// Whether the guards let a call have this name. One that nobody has offered is the model's own words: they judge it as
    /// a text of the answer, and one that a guard changes is a tool that nobody has.
    async fn passes_name(&mut self, choice: u32, name: &str, ending: Option<&str>) -> Result<bool, Reject> {
        if self.guards().is_empty() || self.is_offered(name) {
            return Ok(true);
        }
        let (guards, asking) =
            (&self.pipeline.stages.stream_guards, asking(&self.turn, choice, &Channel::Text, ending));
        let text = Piece { text: name.to_owned(), logprobs: Vec::new() };
        // Of the answer's own text more may come.
        let mut apart = OutputScreen::default();
        let verdict = Box::pin(apart.judge(guards, asking, text, Vec::new())).await;
        self.screen.findings.append(&mut apart.findings);
        let verdict = verdict?;
        Ok(!verdict.halted && verdict.text == name)
    }

    fn is_offered(&self, name: &str) -> bool {
        let TurnPlan { request, tools, .. } = &self.turn;
        request.chat.tools.iter().any(|tool| tool.name == name) || tools.iter().any(|tool| tool.def.name == name)
    }

    /// Arguments are held until the guards have judged them; `None` when one halts.
    pub(super) async fn judge_calls(
        &mut self,
        choice: u32,
        calls: Vec<ToolCall>,
        ending: Option<&str>,
    ) -> Result<Option<Vec<ToolCall>>, Reject> {
        let mut judged = Vec::with_capacity(calls.len());
        for mut call in calls {
            if !self.passes_name(choice, &call.name, ending).await? {
                return Ok(None);
            }
            let channel = Channel::ToolArguments(self.seen_ids.of_next(&call.id));
            let arguments = Piece { text: call.arguments, logprobs: Vec::new() };
            let (guards, asking) = (&self.pipeline.stages.stream_guards, asking(&self.turn, choice, &channel, ending));
            let verdict = self.screen.judge(guards, asking, arguments, Vec::new()).await?;
            if verdict.halted {
                return Ok(None);
            }
            call.arguments = verdict.text;
            judged.push(call);
        }
        Ok(Some(judged))
    }

    /// Says that these calls of the server's are not run: the turn was cut off, or calls a tool of the caller too, which the
    /// caller has to answer first. A name that nobody has offered is the model's own word, and not told.
    pub(super) fn leave_out(&self, ours: &[ToolCall], reason: FinishReason) {
        let cx = &self.turn.request.cx;
        let names = ours.iter().map(|call| call.name.as_str()).filter(|name| self.is_offered(name));
        let tools = names.collect::<Vec<_>>().join(", ");
        tracing::warn!(request = %cx.request_id, calls = ours.len(), tools, finish = reason.as_str(),
            "not run: the turn was cut off, or calls a tool of the caller too");
        cx.note(|report| ours.iter().for_each(|_| report.omitted()));
    }

    /// A tool of the server, or one that nobody offered while the server has tools: then the model is told.
    pub(super) fn is_ours(&self, name: &str) -> bool {
        let ours = &self.turn.tools;
        let theirs = &self.turn.request.chat.tools;
        !theirs.iter().any(|tool| tool.name == name)
            && (theirs.is_empty() && !ours.is_empty() || ours.iter().any(|tool| tool.def.name == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_of_an_answer_is_seen_under_an_id_of_its_own() {
        let mut seen = SeenIds::default();
        let ids = ["a", "b", "a", "a", "b", "a~5", "a", "a~2", "", "", "a"];
        let expected = ["a", "b", "a~2", "a~3", "b~2", "a~5", "a~4", "a~2~2", "", "~2", "a~6"];
        assert_eq!(ids.map(|id| seen.of_next(id)), expected);
    }
}
