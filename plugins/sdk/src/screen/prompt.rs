//! A screen on prompts: every text of the chosen roles, and arguments of earlier tool calls.

use super::json::{InJson, JsonPlace};
use super::{OnMatch, Rules, Screen};
use crate::findings::Findings;
use crate::scan::{Hit, Scanner, find_all};
use crate::stages::{Edit, Prompt, Verdict};
use crate::types::{Message, Part, Span, ToolCall};
use serde::de::IgnoredAny;

#[derive(Default)]
struct Seen {
    findings: Findings,
    edits: Vec<Edit>,
    /// The rule of the first match.
    first: Option<usize>,
}

impl<R: Rules> Screen<R> {
    /// The verdict on a prompt.
    pub fn prompt(&self, prompt: &Prompt) -> Verdict {
        let mut seen = Seen::default();
        for message in prompt.messages.iter().filter(|message| self.looks_at(&message.role)) {
            self.see_message(message, &mut seen);
        }
        self.count(seen.findings.count());
        let verdict = match (self.config.action, seen.first) {
            (OnMatch::Block, Some(rule)) => Verdict::refuse(self.rules.refusal(rule)),
            (OnMatch::Redact, _) => Verdict::rewrite(seen.edits),
            _ => Verdict::allow(),
        };
        verdict.with(seen.findings.into_list())
    }

    fn see_message(&self, message: &Message, seen: &mut Seen) {
        // A finding's span counts in the message's text parts, joined.
        let mut joined = 0;
        for (idx, part) in message.parts.iter().enumerate() {
            if let Some(text) = part.as_text() {
                let offset = matches!(part, Part::Text(_)).then_some(joined);
                self.see_text(message, idx, text, offset, seen);
            }
            match part {
                Part::Text(text) => joined += text.len(),
                Part::ToolCall(call) if self.config.tool_arguments => self.see_arguments(message, call, seen),
                _ => {}
            }
        }
    }

    fn see_text(&self, message: &Message, part: usize, text: &str, offset: Option<usize>, seen: &mut Seen) {
        for hit in whole_matches(&self.rules, text) {
            let finding = self.rules.finding(hit.rule).in_message(&message.id);
            seen.findings.push(match offset {
                Some(offset) => finding.at(Span::of(offset + hit.range.start..offset + hit.range.end)),
                None => finding,
            });
            seen.first.get_or_insert(hit.rule);
            seen.edits.push(Edit::ReplaceText {
                message_id: message.id.clone(),
                part: u32::try_from(part).unwrap_or(u32::MAX),
                span: Span::of(hit.range),
                text: self.rules.replacement(hit.rule),
            });
        }
    }

    fn see_arguments(&self, message: &Message, call: &ToolCall, seen: &mut Seen) {
        let hits = whole_matches(&InJson(&self.rules), &call.arguments);
        if hits.is_empty() {
            return;
        }
        let (mut redacted, mut place, mut from) = (String::new(), JsonPlace::default(), 0);
        for hit in hits {
            seen.findings.push(self.rules.finding(hit.rule).in_message(&message.id));
            seen.first.get_or_insert(hit.rule);
            let kept = &call.arguments[from..hit.range.start];
            place.pass(kept);
            redacted.push_str(kept);
            redacted.push_str(&place.replacement(self.rules.replacement(hit.rule)));
            from = hit.range.end;
        }
        redacted.push_str(&call.arguments[from..]);
        // A model may have written arguments that are no JSON; as a JSON string they are.
        if serde_json::from_str::<IgnoredAny>(&redacted).is_err() {
            redacted = crate::json::quote(&redacted);
        }
        seen.edits.push(Edit::SetArguments(call.id.clone(), redacted));
    }
}

/// Matches of a whole text, with the pieces of open ones joined.
fn whole_matches(scanner: &impl Scanner, text: &str) -> Vec<Hit> {
    let mut joined: Vec<Hit> = Vec::new();
    for hit in find_all(scanner, text) {
        match joined.last_mut() {
            Some(last) if hit.continues => last.range.end = hit.range.end,
            _ => joined.push(hit),
        }
    }
    joined
}
