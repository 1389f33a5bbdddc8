//! A screen on prompts: every text of the chosen roles, and arguments of earlier tool calls. Text parts of a message are
//! one text to the model, so they are to the screen: what stands half in one and half in the next is found.

use super::json;
use super::{OnMatch, Rules, Screen};
use crate::changes::Changes;
use crate::findings::Findings;
use crate::scan::{Hit, Scanner, find_all};
use crate::stages::{Prompt, Verdict};
use crate::types::{Message, Part, Role, Span, ToolCall};
use std::borrow::Cow;
use std::ops::Range;

#[derive(Default)]
struct Seen<'a> {
    findings: Findings,
    changes: Changes<'a>,
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
            (OnMatch::Redact, Some(rule)) => match seen.changes.into_edits() {
                Some(edits) => Verdict::rewrite(edits),
                // A failure would be the caller's doing, and where it lets text pass, all of it would.
                None => Verdict::refuse(self.rules.refusal(rule).because("more is found than a verdict can redact")),
            },
            _ => Verdict::allow(),
        };
        verdict.with(seen.findings.into_list())
    }

    /// Whether its first look finds nothing in messages that are a text each: for [`crate::PromptGlance`].
    pub fn glance_prompt(&self, messages: &[(Role, String)]) -> bool {
        let mut seen = messages.iter().filter(|(role, _)| self.looks_at(role));
        seen.all(|(_, text)| find_all(&self.rules, text).is_empty())
    }

    fn see_message<'a>(&self, message: &'a Message, seen: &mut Seen<'a>) {
        self.see_joined(message, seen);
        for (idx, part) in message.parts.iter().enumerate() {
            match part {
                Part::Text(_) => {}
                Part::ToolCall(call) if self.config.tool_arguments => self.see_arguments(message, call, seen),
                _ => part.as_text().into_iter().for_each(|text| self.see_alone(message, idx, text, seen)),
            }
        }
    }

    /// The message's text parts, in whose joined text a finding's span counts.
    fn see_joined<'a>(&self, message: &'a Message, seen: &mut Seen<'a>) {
        let texts = Texts::of(message);
        for hit in self.matches_of(&texts) {
            seen.findings.push(self.rules.finding(hit.rule).in_message(&message.id).at(Span::of(hit.range.clone())));
            seen.first.get_or_insert(hit.rule);
            let mut new = self.rules.replacement(hit.rule);
            for (part, old, range) in texts.within(&hit.range) {
                seen.changes.replace(&message.id, part, old, range, std::mem::take(&mut new));
            }
        }
    }

    /// Of parts that are several, each is looked at alone as well: what is found there is not hidden by what another part
    /// ends with.
    fn matches_of(&self, texts: &Texts<'_>) -> Vec<Hit> {
        let mut hits = whole_matches(&self.rules, &texts.joined);
        if texts.parts.len() > 1 {
            for (_, old, start) in &texts.parts {
                let moved = |hit: Hit| Hit { range: start + hit.range.start..start + hit.range.end, ..hit };
                hits.extend(whole_matches(&self.rules, old).into_iter().map(moved));
            }
        }
        apart(hits)
    }

    fn see_alone<'a>(&self, message: &'a Message, part: usize, text: &'a str, seen: &mut Seen<'a>) {
        for hit in whole_matches(&self.rules, text) {
            seen.findings.push(self.rules.finding(hit.rule).in_message(&message.id));
            seen.first.get_or_insert(hit.rule);
            seen.changes.replace(&message.id, part, text, hit.range, self.rules.replacement(hit.rule));
        }
    }

    fn see_arguments(&self, message: &Message, call: &ToolCall, seen: &mut Seen<'_>) {
        let hits = json::matches(&self.rules, &call.arguments);
        let Some(first) = hits.first() else { return };
        seen.first.get_or_insert(first.rule);
        for hit in &hits {
            seen.findings.push(self.rules.finding(hit.rule).in_message(&message.id));
        }
        let redacted = json::replaced(&call.arguments, &hits, |rule| self.rules.replacement(rule));
        seen.changes.set_arguments(&call.id, redacted);
    }
}

/// The text parts of a message, and what they are together.
struct Texts<'a> {
    joined: Cow<'a, str>,
    /// Index in the message, text, and where that begins in the joined one.
    parts: Vec<(usize, &'a str, usize)>,
}

impl<'a> Texts<'a> {
    fn of(message: &'a Message) -> Self {
        let (mut parts, mut len) = (Vec::new(), 0);
        for (idx, part) in message.parts.iter().enumerate() {
            if let Part::Text(text) = part {
                parts.push((idx, text.as_str(), len));
                len += text.len();
            }
        }
        let joined = match parts[..] {
            [(_, only, _)] => Cow::Borrowed(only),
            _ => Cow::Owned(parts.iter().map(|(_, text, _)| *text).collect()),
        };
        Self { joined, parts }
    }

    /// What a range of the joined text is in each part that has some of it.
    fn within(&self, range: &Range<usize>) -> impl Iterator<Item = (usize, &'a str, Range<usize>)> {
        let first = self.parts.partition_point(|(_, text, start)| start + text.len() <= range.start);
        let touched = self.parts[first..].iter().take_while(move |(_, _, start)| *start < range.end);
        touched.filter(|(_, text, _)| !text.is_empty()).map(move |(idx, text, start)| {
            let end = range.end.min(start + text.len()) - start;
            (*idx, *text, range.start.saturating_sub(*start)..end)
        })
    }
}

/// Matches of a whole text, with the pieces of open ones joined.
pub(super) fn whole_matches(scanner: &impl Scanner, text: &str) -> Vec<Hit> {
    let mut joined: Vec<Hit> = Vec::new();
    for hit in find_all(scanner, text) {
        match joined.last_mut() {
            Some(last) if hit.continues => last.range.end = hit.range.end,
            _ => joined.push(hit),
        }
    }
    joined
}

/// Matches in order, those that overlap as one.
fn apart(hits: Vec<Hit>) -> Vec<Hit> {
    // Equals keep their order by their number: a sort that does it by itself has 4 KiB of stack for that, a page of each
    // instance's memory.
    let mut hits: Vec<(usize, Hit)> = hits.into_iter().enumerate().collect();
    hits.sort_unstable_by_key(|(number, hit)| (hit.range.start, usize::MAX - hit.range.end, *number));
    let mut kept: Vec<Hit> = Vec::new();
    for (_, hit) in hits {
        match kept.last_mut().filter(|last| hit.range.start < last.range.end) {
            Some(last) => last.range.end = last.range.end.max(hit.range.end),
            None => kept.push(hit),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_that_overlap_are_one_and_of_equals_it_is_the_first() {
        let hit = |range, rule| Hit { range, rule, continues: false };
        let many = (0..40).rev().map(|at| hit(10 * at..10 * at + 5, 9 + at));
        let kept = apart(many.chain([hit(10..15, 0), hit(12..17, 1), hit(10..12, 2)]).collect());
        assert_eq!(kept.len(), 40);
        assert!(kept.iter().enumerate().all(|(at, hit)| (hit.rule, hit.range.start) == (9 + at, 10 * at)));
        assert_eq!(kept[1].range, 10..17);
    }
}
