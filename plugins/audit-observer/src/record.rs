//! What is written of a request: keys and JSON values. Units are in the names; what the host did not tell is left out.

use serde::Deserialize;
use std::collections::BTreeMap;
use tidegate_plugin_sdk::json::{list, quote};
use tidegate_plugin_sdk::{Attrs, Context, Finding, Severity, Summary};

/// How findings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Detail {
    /// Each with its severity, score, message and place.
    Each,
    /// How many of each category, with the worst severity.
    Counts,
    /// Not at all.
    None,
}

/// How a request ended, and when.
#[derive(Debug)]
pub struct Record<'a> {
    /// Who and which.
    pub ctx: &'a Context,
    /// What the host tells.
    pub summary: &'a Summary,
    /// The findings that are wanted.
    pub findings: &'a [&'a Finding],
    /// Now.
    pub ended_unix_ms: u64,
}

/// Findings that are written one by one; the host caps a call's log lines.
const MAX_EACH: usize = 32;

impl Record<'_> {
    /// The fields of the line.
    pub fn fields(&self, detail: Detail) -> Attrs {
        let Self { ctx, summary, findings, ended_unix_ms } = self;
        let mut fields = Attrs::new();
        let mut add = |key: &str, json: String| fields.push((key.to_owned(), json));
        add("request", quote(&ctx.request_id));
        add("caller", quote(&ctx.caller));
        add("ended_unix_ms", ended_unix_ms.to_string());
        add("outcome", quote(&summary.outcome));
        for (key, text) in [("detail", &summary.detail), ("model", &summary.model)] {
            if !text.is_empty() {
                add(key, quote(text));
            }
        }
        add("stream", ctx.streaming.to_string());
        add("input_tokens", summary.usage.input.to_string());
        add("cached_tokens", summary.usage.input_cached.to_string());
        add("output_tokens", summary.usage.output.to_string());
        if let Some(first) = summary.first_ms {
            add("first_ms", first.to_string());
        }
        add("total_ms", summary.total_ms.to_string());
        match detail {
            Detail::None => {}
            _ if findings.is_empty() => {}
            Detail::Counts => add("findings", counts(findings)),
            Detail::Each => {
                add("findings", list(findings.iter().take(MAX_EACH).map(|finding| one(finding))));
                add("findings_count", findings.len().to_string());
            }
        }
        fields
    }
}

fn counts(findings: &[&Finding]) -> String {
    let mut by_category: BTreeMap<&str, (usize, Severity)> = BTreeMap::new();
    for finding in findings {
        let entry = by_category.entry(&finding.category).or_insert((0, finding.severity));
        *entry = (entry.0 + 1, entry.1.max(finding.severity));
    }
    list(by_category.into_iter().map(|(category, (count, worst))| {
        format!("{{\"category\":{},\"count\":{count},\"severity\":\"{}\"}}", quote(category), severity(worst))
    }))
}

/// A finding's own attributes stay out: what a plugin puts there may quote the text.
fn one(finding: &Finding) -> String {
    let mut json =
        format!("{{\"category\":{},\"severity\":\"{}\"", quote(&finding.category), severity(finding.severity));
    if let Some(score) = finding.score.filter(|score| score.is_finite()) {
        json.push_str(&format!(",\"score\":{score}"));
    }
    if let Some(message) = &finding.message_id {
        json.push_str(&format!(",\"message\":{}", quote(message)));
    }
    if let Some(span) = finding.span {
        json.push_str(&format!(",\"span\":[{},{}]", span.start, span.end));
    }
    json.push('}');
    json
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Low => "low",
        Severity::Medium => "medium",
        Severity::High => "high",
        Severity::Critical => "critical",
    }
}
