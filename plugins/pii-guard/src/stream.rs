//! The guard on streams. What is remembered is where the scan stopped: a few bytes.

use crate::detect::Detector;
use crate::json::JsonPlace;
use crate::{Action, PiiGuard};
use serde::{Deserialize, Serialize};
use tidegate_plugin_sdk::host::metrics;
use tidegate_plugin_sdk::scan::{Hit, Resume, scan};
use tidegate_plugin_sdk::{Channel, Context, Error, Findings, Inspection, Span, StreamGuard, Window};

/// Where the scan of a channel stopped.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct State {
    resume: Resume,
    /// For arguments of tools.
    place: JsonPlace,
}

impl StreamGuard for PiiGuard {
    type State = State;

    fn inspect_window(&self, _: &Context, state: &mut State, window: &Window) -> Result<Inspection, Error> {
        let is_json = matches!(window.channel, Channel::ToolArguments(_));
        if is_json && !self.config.tool_arguments {
            return Ok(Inspection::pass(window.text.len()));
        }
        let detector = if is_json { &self.json } else { &self.plain };
        let scanned = scan(detector, &mut state.resume, &window.text, window.start(), window.is_last());
        let findings = findings(&scanned.hits);
        let inspection = match (self.config.action, scanned.hits.first()) {
            (Action::Block, Some(hit)) => {
                let refusal = self.refusal(Detector::kind(hit.rule));
                Inspection::halt_at(window, hit.range.start, &[], refusal, "")
            }
            (Action::Redact, _) if is_json => {
                Inspection::redact(scanned.safe, self.in_json(state, window, &scanned.hits, scanned.safe))
            }
            (Action::Redact, Some(_)) => Inspection::redact(scanned.safe, self.in_text(&scanned.hits)),
            _ => Inspection::pass(scanned.safe),
        };
        Ok(inspection.with(findings))
    }
}

type Replaced = Vec<(std::ops::Range<usize>, String)>;

impl PiiGuard {
    /// The first piece of a match is replaced, later ones vanish.
    fn in_text(&self, hits: &[Hit]) -> Replaced {
        let text = |hit: &Hit| if hit.continues { String::new() } else { self.replacement(Detector::kind(hit.rule)) };
        hits.iter().map(|hit| (hit.range.clone(), text(hit))).collect()
    }

    fn in_json(&self, state: &mut State, window: &Window, hits: &[Hit], safe: usize) -> Replaced {
        let mut replaced = self.in_text(hits);
        let mut from = window.start();
        for (hit, (range, text)) in hits.iter().zip(&mut replaced) {
            state.place.pass(&window.text[from..range.start]);
            if !hit.continues {
                *text = state.place.replacement(std::mem::take(text));
            }
            from = range.end;
        }
        state.place.pass(&window.text[from..safe]);
        replaced
    }
}

fn findings(hits: &[Hit]) -> Vec<tidegate_plugin_sdk::Finding> {
    let mut findings = Findings::default();
    for hit in hits.iter().filter(|hit| !hit.continues) {
        findings.push(PiiGuard::finding(Detector::kind(hit.rule)).at(Span::of(hit.range.clone())));
    }
    if findings.count() > 0 {
        metrics::count("pii_found", findings.count() as u64);
    }
    findings.into_list()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_plugin_sdk::testing::{Host, assert_same_for_any_chunking, plugin};

    fn redacted(config: &str, channel: Channel, text: &str) -> String {
        let host = Host { channel, ..Host::default() };
        assert_same_for_any_chunking(&plugin::<PiiGuard>(config), &host, text, &[]).text
    }

    #[test]
    fn a_stream_is_redacted_across_borders_of_its_pieces() {
        let text = "Mail jo@example.com or call +49 30 1234567. Card 4111 1111 1111 1111, DE89 3704 0044 0532 0130 00.";
        let expected = "Mail [email] or call [phone]. Card [card], [iban].";
        assert_eq!(redacted("", Channel::Text, text), expected);
        assert_eq!(redacted("", Channel::Reasoning, text), expected);
        assert_eq!(redacted(r#"{"replacement":""}"#, Channel::Text, "I am jo@example.com."), "I am .");
    }

    #[test]
    fn a_key_longer_than_the_holdback_never_leaves() {
        let key = format!("sk-{}", "a1B2".repeat(400));
        assert_eq!(redacted("", Channel::Text, &format!("It is {key}. Bye")), "It is [api-key]. Bye");
        let token = format!("eyJhbGciOiJIUzI1NiJ9.eyJ{}.{}", "a1B2".repeat(400), "c3D4".repeat(50));
        assert_eq!(redacted("", Channel::Text, &format!("It is {token}. Bye")), "It is [api-key]. Bye");
    }

    #[test]
    fn block_ends_the_answer_where_the_find_begins() {
        let host = Host::default();
        let guard = plugin::<PiiGuard>(r#"{"action":"block"}"#);
        let outcome = assert_same_for_any_chunking(&guard, &host, "Write to jo@example.com today", &[3, 12, 20]);
        assert_eq!((outcome.text.as_str(), outcome.halted.as_deref()), ("Write to ", Some("pii")));
    }

    #[test]
    fn arguments_stay_json_and_can_be_left_alone() {
        let channel = || Channel::ToolArguments("c1".into());
        let text = r#"{"to":"x\njo@example.com","card":4111111111111111,"n":[1,2]}"#;
        let expected = r#"{"to":"x\n[email]","card":"[card]","n":[1,2]}"#;
        assert_eq!(redacted("", channel(), text), expected);
        assert_eq!(redacted(r#"{"tool_arguments":false}"#, channel(), text), text);
    }

    #[test]
    fn plain_text_leaves_word_by_word() {
        let guard = plugin::<PiiGuard>("");
        let outcome = Host::default().stream(&guard, &["The", " quick", " brown", " fox", " is 12", " years old."]);
        let outcome = outcome.unwrap();
        assert_eq!(outcome.text, "The quick brown fox is 12 years old.");
        assert!(outcome.held_bytes <= 5, "{} bytes were held", outcome.held_bytes);
        assert_eq!(outcome.findings, []);
    }

    /// Text in which the detectors have work: parts of what they look for, glued at random.
    fn awkward() -> impl Strategy<Value = String> {
        const PIECES: &[&str] = &[
            "jo",
            "@",
            "example",
            ".com",
            ".",
            " ",
            "-",
            "+49",
            "30",
            "123",
            "4567",
            "0",
            "(415)",
            "555",
            "2671",
            "4111",
            "1111",
            "411111111111111",
            "1",
            "DE89",
            "3704",
            "0044053201300",
            "sk-",
            "a1B2c3D4",
            "eyJhbGciOiJ9",
            ".eyJ",
            "AKIA",
            "\"",
            "\\",
            "\\n",
            "u0041",
            ",",
            "é",
            "谢",
            "/",
            "\n",
            "_",
            "x",
            "SG.",
            "aB3dE5gH7jK9mN1p",
        ];
        proptest::collection::vec(proptest::sample::select(PIECES), 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn the_client_reads_the_same_for_any_chunking(
            text in awkward(),
            at in proptest::collection::vec(0usize..300, 0..8),
            look_behind in 0usize..40,
        ) {
            for channel in [Channel::Text, Channel::ToolArguments("c1".into())] {
                let host = Host { channel, look_behind, ..Host::default() };
                assert_same_for_any_chunking(&plugin::<PiiGuard>(""), &host, &text, &at);
                assert_same_for_any_chunking(&plugin::<PiiGuard>(r#"{"action":"block"}"#), &host, &text, &at);
            }
        }

        #[test]
        fn what_a_prompt_loses_a_stream_loses_too(text in awkward()) {
            let guard = plugin::<PiiGuard>("");
            let streamed = Host::default().stream(&guard, &[&text]).unwrap().text;
            let mut edited = text.clone();
            let hits = tidegate_plugin_sdk::scan::find_all(&guard.plain, &text);
            for hit in hits.iter().rev() {
                let replacement = if hit.continues { String::new() } else { guard.replacement(Detector::kind(hit.rule)) };
                edited.replace_range(hit.range.clone(), &replacement);
            }
            prop_assert_eq!(streamed, edited);
        }
    }
}
