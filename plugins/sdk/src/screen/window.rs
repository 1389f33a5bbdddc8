//! A screen on streams.

use super::json::InJson;
use super::{OnMatch, Rules, Screen, ScreenState};
use crate::findings::Findings;
use crate::scan::{Hit, scan};
use crate::stages::{Channel, Inspection, Window};
use crate::types::{Finding, Span};
use std::ops::Range;

impl<R: Rules> Screen<R> {
    /// The answer to a window.
    pub fn window(&self, state: &mut ScreenState, window: &Window) -> Inspection {
        let is_json = matches!(window.channel, Channel::ToolArguments(_));
        if is_json && !self.config.tool_arguments {
            return Inspection::pass(window.text.len());
        }
        let (resume, text, from) = (&mut state.resume, window.text.as_str(), window.start());
        let scanned = if is_json {
            scan(&InJson(&self.rules), resume, text, from, window.is_last())
        } else {
            scan(&self.rules, resume, text, from, window.is_last())
        };
        let inspection = match (self.config.action, scanned.hits.first()) {
            (OnMatch::Block, Some(hit)) => {
                Inspection::halt_at(window, hit.range.start, &[], self.rules.refusal(hit.rule), "")
            }
            (OnMatch::Redact, _) if is_json => {
                Inspection::redact(scanned.safe, self.replaced_in_json(state, window, &scanned.hits, scanned.safe))
            }
            (OnMatch::Redact, Some(_)) => Inspection::redact(scanned.safe, self.replaced(&scanned.hits)),
            _ => Inspection::pass(scanned.safe),
        };
        inspection.with(self.findings(&scanned.hits))
    }

    /// The first piece of a match is replaced, later ones vanish.
    fn replaced(&self, hits: &[Hit]) -> Vec<(Range<usize>, String)> {
        let text = |hit: &Hit| if hit.continues { String::new() } else { self.rules.replacement(hit.rule) };
        hits.iter().map(|hit| (hit.range.clone(), text(hit))).collect()
    }

    fn replaced_in_json(
        &self,
        state: &mut ScreenState,
        window: &Window,
        hits: &[Hit],
        safe: usize,
    ) -> Vec<(Range<usize>, String)> {
        let mut replaced = self.replaced(hits);
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

    fn findings(&self, hits: &[Hit]) -> Vec<Finding> {
        let mut findings = Findings::default();
        for hit in hits.iter().filter(|hit| !hit.continues) {
            findings.push(self.rules.finding(hit.rule).at(Span::of(hit.range.clone())));
        }
        self.count(findings.count());
        findings.into_list()
    }
}
