//! What the service may answer. Anything else is a failure of the guard, never an `allow`.

use crate::places::{Finder, Found};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use tidegate_plugin_sdk::host::log;
use tidegate_plugin_sdk::{Changes, Error, Finding, Findings, Message, Part, Refusal, Severity, Verdict};

/// The service's answer.
#[derive(Debug)]
pub struct Answer {
    verdict: Kind,
    message: Option<String>,
    reason: Option<String>,
    redactions: Vec<Redaction>,
    findings: Findings,
}

/// The same as it came. Keys that are not known are passed over, so that a service may say more. What stands beside the
/// verdict is read apart from it: no refusal is lost for a finding. `null` is nothing: so some languages write an empty list.
#[derive(Deserialize)]
struct Said<'a> {
    verdict: Kind,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    reason: Option<&'a RawValue>,
    #[serde(borrow)]
    redactions: Option<&'a RawValue>,
    #[serde(borrow)]
    findings: Option<&'a RawValue>,
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

#[derive(Deserialize)]
struct Seen<'a> {
    category: String,
    #[serde(borrow)]
    severity: Option<&'a RawValue>,
    #[serde(borrow)]
    score: Option<&'a RawValue>,
}

const REDACTED: &str = "[redacted]";

/// The host takes no longer ones.
const MAX_CATEGORY_BYTES: usize = 128;

impl Answer {
    /// Reads a body.
    ///
    /// # Errors
    /// For what is no answer, and for redactions that find nothing to redact.
    pub fn parse(body: &[u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(body).map_err(|_| Error::Other("the service's answer is not UTF-8".into()))?;
        let not_understood = |problem| Error::Other(format!("the service's answer is not understood: {problem}"));
        let said: Said<'_> = serde_json::from_str(text).map_err(not_understood)?;
        let redactions = match said.redactions.filter(|_| said.verdict != Kind::Refuse) {
            Some(json) => serde_json::from_str(json.get()).map_err(not_understood)?,
            None => Vec::new(),
        };
        let answer = Self {
            verdict: said.verdict,
            message: said.message.and_then(read),
            reason: said.reason.and_then(read),
            redactions,
            findings: said.findings.map(findings).unwrap_or_default(),
        };
        let is_empty = |redaction: &Redaction| redaction.find.is_empty();
        if answer.verdict == Kind::Redact && (answer.redactions.is_empty() || answer.redactions.iter().any(is_empty)) {
            return Err(Error::Other("the service says `redact` and not what".into()));
        }
        Ok(answer)
    }

    /// The verdict on these messages; `message` is told where the service gives none.
    ///
    /// # Errors
    /// For redactions that find nothing: the service saw something that would stay.
    pub fn verdict(self, messages: &[&Message], message: &str) -> Result<Verdict, Error> {
        let verdict = match self.verdict {
            Kind::Allow => Verdict::allow(),
            Kind::Refuse => {
                let refusal = Refusal::new("webhook", self.message.unwrap_or_else(|| message.to_owned()));
                Verdict::refuse(match self.reason {
                    Some(reason) => refusal.because(reason),
                    None => refusal,
                })
            }
            Kind::Redact => match changes(messages, &self.redactions)?.into_edits() {
                Some(edits) => Verdict::rewrite(edits),
                None => Verdict::refuse(
                    Refusal::new("webhook", message).because("the service redacts more than a verdict can"),
                ),
            },
        };
        Ok(verdict.with(self.findings.into_list()))
    }
}

/// What is of the wanted type.
fn read<'a, T: Deserialize<'a>>(json: &'a RawValue) -> Option<T> {
    serde_json::from_str(json.get()).ok()
}

/// The findings that are understood; of the others the log has the number. More than the host takes would be a failure, and
/// a refusal lost with it.
fn findings(json: &RawValue) -> Findings {
    let (mut findings, mut others) = (Findings::default(), 0);
    for one in read::<Vec<&RawValue>>(json).unwrap_or_else(|| vec![json]) {
        match read::<Seen<'_>>(one) {
            Some(seen) => findings.push(seen.finding()),
            None => others += 1,
        }
    }
    if others > 0 {
        log::warn(&format!("{others} of the service's findings are not understood"));
    }
    findings
}

impl Seen<'_> {
    /// What is said of a severity or score in another way than the README's is as if it were not said.
    fn finding(self) -> Finding {
        let severity = match self.severity.and_then(read::<String>).as_deref() {
            Some("info") => Severity::Info,
            Some("low") => Severity::Low,
            Some("high") => Severity::High,
            Some("critical") => Severity::Critical,
            _ => Severity::Medium,
        };
        // One that the host does not take would be a failure, and the verdict lost with it.
        let mut category = format!("webhook-guard:{}", self.category.replace(char::is_control, " "));
        category.truncate(category.floor_char_boundary(MAX_CATEGORY_BYTES));
        let mut finding = Finding::new(category, severity);
        finding.score = self.score.and_then(read).filter(|score| (0.0..=1.0).contains(score));
        finding
    }
}

/// All places of all texts that are to go. Where places overlap, all of them becomes what stands for the first; of two that begin
/// at one place, for the longer one. The texts of a message are looked at one behind the other, as the model reads them: what
/// stands for a place is in the text that it begins in, and the rest of it goes from those behind.
///
/// # Errors
/// For a text that is nowhere: what is not there as the service gives it (with other white space, say) is there in another form, and
/// would stay.
fn changes<'a>(messages: &[&'a Message], redactions: &[Redaction]) -> Result<Changes<'a>, Error> {
    let redactions = distinct(redactions);
    let finds: Vec<&str> = redactions.iter().map(|redaction| redaction.find.as_str()).collect();
    let (mut changes, mut finder) = (Changes::default(), Finder::new(&finds));
    for message in messages {
        // What the model reads as one text; reasoning and refusals beside it are texts of their own.
        let (text, others): (Vec<_>, Vec<_>) =
            message.texts().partition(|(part, _)| matches!(message.parts.get(*part), Some(Part::Text(_))));
        for texts in std::iter::once(&text[..]).chain(others.chunks(1)) {
            let joined: Cow<'_, str> = match texts {
                [(_, only)] => Cow::Borrowed(only),
                several => Cow::Owned(several.iter().map(|(_, text)| *text).collect()),
            };
            for (part, text, found) in split(texts, finder.places(&joined)) {
                let with = match found.is_first {
                    true => redactions[found.idx].with.clone().unwrap_or_else(|| REDACTED.into()),
                    false => String::new(),
                };
                changes.replace(&message.id, part, text, found.range, with);
            }
        }
    }
    match finder.has_met_all() {
        true => Ok(changes),
        false => Err(Error::Other("the service redacts what is not in the text".into())),
    }
}

/// What of a place is in one text.
struct Piece {
    range: Range<usize>,
    idx: usize,
    /// Whether the place begins here.
    is_first: bool,
}

/// Places in the joined texts, as those in each of them; both are in order, and places are apart.
fn split<'t>(texts: &[(usize, &'t str)], places: Vec<Found>) -> Vec<(usize, &'t str, Piece)> {
    let (mut pieces, mut before, mut first) = (Vec::new(), 0, 0);
    for (part, text) in texts {
        let end = before + text.len();
        // The last place of a text may go on in the next one.
        first += places[first..].iter().take_while(|place| place.range.end <= before).count();
        for Found { range, idx } in places[first..].iter().take_while(|place| place.range.start < end) {
            let inside = range.start.max(before) - before..range.end.min(end) - before;
            if !inside.is_empty() {
                pieces.push((*part, *text, Piece { range: inside, idx: *idx, is_first: range.start >= before }));
            }
        }
        before = end;
    }
    pieces
}

/// Each text once, with what is said of it first: services name one for each of its places.
fn distinct(redactions: &[Redaction]) -> Vec<&Redaction> {
    let mut seen = HashSet::new();
    redactions.iter().filter(|redaction| seen.insert(redaction.find.as_str())).collect()
}
