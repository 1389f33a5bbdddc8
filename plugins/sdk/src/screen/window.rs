//! A screen on streams. Text is judged as it comes; arguments of a tool call are judged as a whole, since the host keeps
//! them until they are.

use super::{OnMatch, Rules, Screen, ScreenState, json};
use crate::findings::Findings;
use crate::scan::{Hit, Resume, scan};
use crate::stages::{Channel, Inspection, Window};
use crate::types::{Finding, Span};
use std::ops::Range;

impl<R: Rules> Screen<R> {
    /// The answer to a window.
    pub fn window(&self, state: &mut ScreenState, window: &Window) -> Inspection {
        match window.channel {
            Channel::ToolArguments(_) => self.arguments(window),
            _ => self.text(state, window),
        }
    }

    /// Its first look at text, where it finds nothing: for [`crate::StreamGlance`].
    pub fn glance(&self, text: &str, settled: usize) -> Option<usize> {
        let mut resume = Resume::default();
        let scanned = scan(&self.rules, &mut resume, text, settled, false);
        (scanned.hits.is_empty() && resume == Resume::default()).then_some(scanned.safe)
    }

    fn text(&self, state: &mut ScreenState, window: &Window) -> Inspection {
        let scanned = scan(&self.rules, &mut state.resume, &window.text, window.start(), window.is_last());
        let Some(first) = scanned.hits.first() else { return Inspection::pass(scanned.safe) };
        let inspection = match self.config.action {
            OnMatch::Block => Inspection::halt_at(window, first.range.start, &[], self.rules.refusal(first.rule), ""),
            OnMatch::Redact => Inspection::redact(scanned.safe, self.replaced(&scanned.hits)),
            OnMatch::Flag => Inspection::pass(scanned.safe),
        };
        let begun = scanned.hits.iter().filter(|hit| !hit.continues);
        inspection.with(self.findings(begun.map(|hit| (hit.rule, hit.range.clone()))))
    }

    fn arguments(&self, window: &Window) -> Inspection {
        if !self.config.tool_arguments {
            return Inspection::pass(window.text.len());
        }
        if !window.is_last() {
            return Inspection::pass(window.start());
        }
        let mut hits = json::matches(&self.rules, window.pending());
        for hit in &mut hits {
            hit.range = window.start() + hit.range.start..window.start() + hit.range.end;
        }
        let inspection = match (self.config.action, hits.first()) {
            (OnMatch::Block, Some(hit)) => Inspection::halt(window, self.rules.refusal(hit.rule), None),
            (OnMatch::Redact, _) => {
                let text = |hit: &json::JsonHit| hit.replacement(self.rules.replacement(hit.rule));
                Inspection::redact(window.text.len(), hits.iter().map(|hit| (hit.range.clone(), text(hit))).collect())
            }
            _ => Inspection::pass(window.text.len()),
        };
        inspection.with(self.findings(hits.into_iter().map(|hit| (hit.rule, hit.range))))
    }

    /// The first piece of a match is replaced, later ones vanish.
    fn replaced(&self, hits: &[Hit]) -> Vec<(Range<usize>, String)> {
        let text = |hit: &Hit| if hit.continues { String::new() } else { self.rules.replacement(hit.rule) };
        hits.iter().map(|hit| (hit.range.clone(), text(hit))).collect()
    }

    fn findings(&self, matches: impl Iterator<Item = (usize, Range<usize>)>) -> Vec<Finding> {
        let mut findings = Findings::default();
        matches.for_each(|(rule, range)| findings.push(self.rules.finding(rule).at(Span::of(range))));
        self.count(findings.count());
        findings.into_list()
    }
}
