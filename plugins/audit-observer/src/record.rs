//! What is written of a request: keys and JSON values. Units are in the names; what the host did not tell is left out.

use serde::Deserialize;
use std::cmp::Reverse;
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
    /// Now: when the observer was called, which is after the end.
    pub ended_unix_ms: u64,
}

/// Findings that are written one by one.
const MAX_EACH: usize = 32;

/// What the findings of a line take in the log, at most. It is half of what the host lets one call log (`log_bytes`): of a
/// line that is longer nothing would be there.
const MAX_FINDINGS_BYTES: usize = 8 << 10;

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
            Detail::Counts => {
                let (counts, more) = within_bounds(counts(findings));
                add("findings", counts);
                if more > 0 {
                    add("findings_more", more.to_string());
                }
            }
            Detail::Each => {
                let each = findings.iter().take(MAX_EACH).map(|finding| one(finding)).collect();
                add("findings", within_bounds(each).0);
                add("findings_count", findings.len().to_string());
            }
        }
        fields
    }
}

/// A list of the first ones, as many as a line has room for, and how many are left out.
fn within_bounds(mut items: Vec<String>) -> (String, usize) {
    let mut left = MAX_FINDINGS_BYTES;
    let fits = |item: &&String| left.checked_sub(logged_bytes(item)).map(|rest| left = rest).is_some();
    let (fitting, all) = (items.iter().take_while(fits).count(), items.len());
    items.truncate(fitting);
    (list(items.into_iter()), all - fitting)
}

/// At most what a text takes in a log that quotes it, where a character that is not ASCII may stand by its number.
fn logged_bytes(text: &str) -> usize {
    let bytes = |character: char| match character {
        '"' | '\\' => 2,
        _ if character.is_ascii() => 1,
        _ => r"\u{10ffff}".len(),
    };
    text.chars().map(bytes).sum()
}

/// A count for each category, the worst first: where there are too many, those are written.
fn counts(findings: &[&Finding]) -> Vec<String> {
    let mut by_category: BTreeMap<&str, (usize, Severity)> = BTreeMap::new();
    for finding in findings {
        let entry = by_category.entry(&finding.category).or_insert((0, finding.severity));
        *entry = (entry.0 + 1, entry.1.max(finding.severity));
    }
    let mut counts: Vec<_> = by_category.into_iter().collect();
    counts.sort_by_key(|(_, (_, worst))| Reverse(*worst));
    let written = |(category, (count, worst)): (&str, (usize, Severity))| {
        format!("{{\"category\":{},\"count\":{count},\"severity\":\"{}\"}}", quote(category), severity(worst))
    };
    counts.into_iter().map(written).collect()
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
