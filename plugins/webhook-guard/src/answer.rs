//! What the service may answer. Anything else is a failure of the guard, never an `allow`.

use serde::Deserialize;
use tidegate_plugin_sdk::{Edit, Error, Finding, Findings, Message, Refusal, Severity, Span, Verdict};

/// The service's answer. Keys that are not known are passed over, so that a service may say more.
#[derive(Debug, Deserialize)]
pub struct Answer {
    verdict: Kind,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    redactions: Vec<Redaction>,
    #[serde(default)]
    findings: Vec<Seen>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Allow,
    Redact,
    Refuse,
}

/// A text that must not stay, wherever it stands: offsets would be counted in other units by every language.
#[derive(Debug, Deserialize)]
struct Redaction {
    find: String,
    #[serde(default)]
    with: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Seen {
    category: String,
    #[serde(default)]
    severity: Option<String>,
    #[serde(default)]
    score: Option<f32>,
}

const REDACTED: &str = "[redacted]";

impl Answer {
    /// Reads a body.
    ///
    /// # Errors
    /// For what is no answer, and for redactions that find nothing to redact.
    pub fn parse(body: &[u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(body).map_err(|_| Error::Other("the service's answer is not UTF-8".into()))?;
        let answer: Self = serde_json::from_str(text)
            .map_err(|problem| Error::Other(format!("the service's answer is not understood: {problem}")))?;
        if answer.verdict == Kind::Redact && answer.redactions.iter().all(|redaction| redaction.find.is_empty()) {
            return Err(Error::Other("the service says `redact` and not what".into()));
        }
        Ok(answer)
    }

    /// The verdict on these messages; `message` is told where the service gives none.
    ///
    /// # Errors
    /// For redactions that find nothing: the service saw something that would stay.
    pub fn verdict(self, messages: &[&Message], message: &str) -> Result<Verdict, Error> {
        // More than the host takes would be a failure, and a refusal lost with it.
        let mut findings = Findings::default();
        self.findings.into_iter().for_each(|seen| findings.push(seen.finding()));
        let verdict = match self.verdict {
            Kind::Allow => Verdict::allow(),
            Kind::Refuse => {
                let refusal = Refusal::new("webhook", self.message.unwrap_or_else(|| message.to_owned()));
                Verdict::refuse(match self.reason {
                    Some(reason) => refusal.because(reason),
                    None => refusal,
                })
            }
            Kind::Redact => {
                let edits: Vec<Edit> = messages.iter().flat_map(|message| edits(message, &self.redactions)).collect();
                if edits.is_empty() {
                    return Err(Error::Other("the service redacts what is not in the text".into()));
                }
                Verdict::rewrite(edits)
            }
        };
        Ok(verdict.with(findings.into_list()))
    }
}

impl Seen {
    fn finding(self) -> Finding {
        let severity = match self.severity.as_deref() {
            Some("info") => Severity::Info,
            Some("low") => Severity::Low,
            Some("high") => Severity::High,
            Some("critical") => Severity::Critical,
            _ => Severity::Medium,
        };
        let mut finding = Finding::new(format!("webhook-guard:{}", self.category), severity);
        finding.score = self.score.filter(|score| (0.0..=1.0).contains(score));
        finding
    }
}

/// Leftmost first; of two that begin at one place, the longer one.
fn edits(message: &Message, redactions: &[Redaction]) -> Vec<Edit> {
    let mut edits = Vec::new();
    for (part, text) in message.texts() {
        let mut at = 0;
        while let Some((start, redaction)) = next(&text[at..], redactions) {
            let (start, end) = (at + start, at + start + redaction.find.len());
            edits.push(Edit::ReplaceText {
                message_id: message.id.clone(),
                part: u32::try_from(part).unwrap_or(u32::MAX),
                span: Span::of(start..end),
                text: redaction.with.clone().unwrap_or_else(|| REDACTED.into()),
            });
            at = end;
        }
    }
    edits
}

fn next<'a>(rest: &str, redactions: &'a [Redaction]) -> Option<(usize, &'a Redaction)> {
    let found = redactions.iter().filter(|redaction| !redaction.find.is_empty());
    let found = found.filter_map(|redaction| Some((rest.find(&redaction.find)?, redaction)));
    found.min_by_key(|(at, redaction)| (*at, usize::MAX - redaction.find.len()))
}
