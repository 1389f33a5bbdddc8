//! The guard on prompts: every text of the chosen roles, and arguments of earlier tool calls.

use crate::detect::Detector;
use crate::json::JsonPlace;
use crate::{Action, PiiGuard};
use serde::de::IgnoredAny;
use tidegate_plugin_sdk::host::metrics;
use tidegate_plugin_sdk::scan::{Hit, find_all};
use tidegate_plugin_sdk::{
    Context, Edit, Error, Findings, Message, Part, Prompt, PromptGuard, Role, Span, ToolCall, Verdict,
};

impl PromptGuard for PiiGuard {
    fn inspect_prompt(&self, _: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
        let mut seen = Seen::default();
        for message in prompt.messages.iter().filter(|message| self.looks_at(&message.role)) {
            self.inspect_message(message, &mut seen);
        }
        if seen.findings.count() > 0 {
            metrics::count("pii_found", seen.findings.count() as u64);
        }
        let verdict = match (self.config.action, seen.first) {
            (Action::Block, Some(kind)) => Verdict::refuse(self.refusal(kind)),
            (Action::Redact, _) => Verdict::rewrite(seen.edits),
            _ => Verdict::allow(),
        };
        Ok(verdict.with(seen.findings.into_list()))
    }
}

#[derive(Default)]
struct Seen {
    findings: Findings,
    edits: Vec<Edit>,
    first: Option<crate::detect::Kind>,
}

impl PiiGuard {
    fn looks_at(&self, role: &Role) -> bool {
        let name = match role {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            // Roles that nobody could have named in the config are looked at.
            Role::Other(_) => return true,
        };
        self.config.roles.iter().any(|chosen| chosen == name)
    }

    fn inspect_message(&self, message: &Message, seen: &mut Seen) {
        // A finding's span counts in the message's text parts, joined.
        let mut joined = 0;
        for (idx, part) in message.parts.iter().enumerate() {
            if let Some(text) = part.as_text() {
                let offset = matches!(part, Part::Text(_)).then_some(joined);
                self.inspect_text(message, idx, text, offset, seen);
            }
            match part {
                Part::Text(text) => joined += text.len(),
                Part::ToolCall(call) if self.config.tool_arguments => self.inspect_arguments(message, call, seen),
                _ => {}
            }
        }
    }

    fn inspect_text(&self, message: &Message, part: usize, text: &str, offset: Option<usize>, seen: &mut Seen) {
        for hit in whole(find_all(&self.plain, text)) {
            let kind = Detector::kind(hit.rule);
            let finding = Self::finding(kind).in_message(&message.id);
            seen.findings.push(match offset {
                Some(offset) => finding.at(Span::of(offset + hit.range.start..offset + hit.range.end)),
                None => finding,
            });
            seen.first.get_or_insert(kind);
            seen.edits.push(Edit::ReplaceText {
                message_id: message.id.clone(),
                part: u32::try_from(part).unwrap_or(u32::MAX),
                span: Span::of(hit.range),
                text: self.replacement(kind),
            });
        }
    }

    fn inspect_arguments(&self, message: &Message, call: &ToolCall, seen: &mut Seen) {
        let hits = whole(find_all(&self.json, &call.arguments));
        if hits.is_empty() {
            return;
        }
        let (mut redacted, mut place, mut from) = (String::new(), JsonPlace::default(), 0);
        for hit in hits {
            let kind = Detector::kind(hit.rule);
            seen.findings.push(Self::finding(kind).in_message(&message.id));
            seen.first.get_or_insert(kind);
            let kept = &call.arguments[from..hit.range.start];
            place.pass(kept);
            redacted.push_str(kept);
            redacted.push_str(&place.replacement(self.replacement(kind)));
            from = hit.range.end;
        }
        redacted.push_str(&call.arguments[from..]);
        // A model may have written arguments that are no JSON; as a JSON string they are.
        if serde_json::from_str::<IgnoredAny>(&redacted).is_err() {
            redacted = serde_json::Value::String(redacted).to_string();
        }
        seen.edits.push(Edit::SetArguments(call.id.clone(), redacted));
    }
}

/// Joins the pieces of matches that were reported open.
fn whole(hits: Vec<Hit>) -> Vec<Hit> {
    let mut joined: Vec<Hit> = Vec::with_capacity(hits.len());
    for hit in hits {
        match joined.last_mut() {
            Some(last) if hit.continues => last.range.end = hit.range.end,
            _ => joined.push(hit),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin_sdk::testing::plugin;
    use tidegate_plugin_sdk::{Action as Said, ToolOutcome};

    fn inspect(config: &str, messages: Vec<Message>) -> Verdict {
        let guard: PiiGuard = plugin(config);
        guard.inspect_prompt(&Context::default(), &Prompt { messages, ..Prompt::default() }).unwrap()
    }

    fn user(text: &str) -> Message {
        Message::text("m0", Role::User, text)
    }

    #[test]
    fn a_prompt_is_redacted_by_default() {
        let mut message = user("Hi, ");
        message.parts.push(Part::Text("I am jo@example.com, +49 30 1234567".into()));
        let verdict = inspect("", vec![message]);
        let edit = |start, end, text: &str| Edit::ReplaceText {
            message_id: "m0".into(),
            part: 1,
            span: Span { start, end },
            text: text.into(),
        };
        assert_eq!(verdict.action, Said::Rewrite(vec![edit(5, 19, "[email]"), edit(21, 35, "[phone]")]));
        assert_eq!(verdict.findings[0].category, "pii:email");
        assert_eq!(verdict.findings[0].span, Some(Span { start: 9, end: 23 }), "spans count in joined text");
    }

    #[test]
    fn block_refuses_and_flag_only_reports() {
        let verdict = inspect(r#"{"action":"block"}"#, vec![user("jo@example.com")]);
        let Said::Refuse(refusal) = verdict.action else { panic!("{verdict:?}") };
        assert_eq!((refusal.code.as_str(), refusal.private_reason.as_deref()), ("pii", Some("found email")));
        assert!(!refusal.public_message.contains("jo@"));
        let verdict = inspect(r#"{"action":"flag"}"#, vec![user("jo@example.com")]);
        assert_eq!((verdict.action, verdict.findings.len()), (Said::Allow, 1));
    }

    #[test]
    fn only_chosen_kinds_and_roles_are_looked_at() {
        let text = "jo@example.com 4111111111111111";
        assert_eq!(inspect(r#"{"kinds":["card"]}"#, vec![user(text)]).findings.len(), 1);
        assert_eq!(inspect("", vec![Message::text("m0", Role::System, text)]).findings.len(), 0);
        assert_eq!(inspect(r#"{"roles":["system"]}"#, vec![user(text)]).findings.len(), 0);
    }

    #[test]
    fn results_and_arguments_of_tools_are_redacted() {
        let call = ToolCall {
            id: "c1".into(),
            name: "send".into(),
            arguments: r#"{"to":"jo@example.com","card":4111111111111111}"#.into(),
        };
        let outcome = ToolOutcome::text(&call, "sent to jo@example.com");
        let mut message = Message::text("m0", Role::Assistant, "");
        message.parts = vec![Part::ToolCall(call), Part::ToolOutcome(outcome)];
        let Said::Rewrite(edits) = inspect("", vec![message]).action else { panic!() };
        assert_eq!(edits[0], Edit::SetArguments("c1".into(), r#"{"to":"[email]","card":"[card]"}"#.into()));
        assert!(matches!(&edits[1], Edit::ReplaceText { part: 1, .. }));
    }

    #[test]
    fn arguments_that_are_no_json_become_a_json_string() {
        let call = ToolCall { id: "c1".into(), name: "send".into(), arguments: "to jo@example.com".into() };
        let mut message = Message::text("m0", Role::Assistant, "");
        message.parts = vec![Part::ToolCall(call)];
        let Said::Rewrite(edits) = inspect("", vec![message]).action else { panic!() };
        assert_eq!(edits, [Edit::SetArguments("c1".into(), r#""to \"[email]\"""#.into())]);
    }
}
