//! What is known of an answer besides what it says: what it cost, what guards decided, where its context is from. Noted
//! while the answer is made, kept with it, and never any of its words.

use crate::finding::{Finding, Severity};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Entries of each list; what is over it is counted in [`Report::omitted`].
const MAX_ENTRIES: usize = 64;
/// Categories of one guard.
const MAX_FLAGS: usize = 32;
/// Bytes of a name that a plugin chose, and of a call's arguments.
const MAX_NAME_BYTES: usize = 256;
const MAX_ARGUMENTS_BYTES: usize = 16 << 10;

/// What is known of one answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// What exactly answered: the fingerprint of an own model, an upstream's own name for its; empty where unknown.
    pub model_version: String,
    /// What is billed, in billionths of the operator's currency; `None` where nobody writes that down.
    pub cost: Option<u64>,
    /// What guards decided, one entry for each guard and kind of text; stores have it by its first name.
    #[serde(rename = "moderation")]
    pub guards: Vec<GuardOutcome>,
    /// Where the passages are from that the model was given.
    pub citations: Vec<Citation>,
    /// Tools of the server that the model called.
    pub tool_runs: Vec<ToolRun>,
    /// Messages of the history that the model did not see.
    pub left_out: u64,
    /// Of those, the ones that a summary stood for.
    pub summarized: u64,
    /// And the ones that a summary could have stood for, and none did; not kept.
    #[serde(skip)]
    pub unseen: u64,
    /// Entries, and ends of long arguments, that were more than is kept.
    pub omitted: u64,
}

/// What a guard decided in the end about one kind of text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuardOutcome {
    /// The guard's name in the config.
    pub stage: String,
    /// What it was asked about.
    pub about: About,
    /// The furthest that it went.
    pub action: GuardAction,
    /// The guard's own word for why it refused or halted.
    pub code: Option<String>,
    /// What it saw.
    pub flags: Vec<Flag>,
}

/// What a guard was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// What the caller sent, with what was said before.
    Prompt,
    /// Passages, memories, summaries and what tools answered.
    Context,
    /// What the model said.
    Answer,
}

/// What a guard did; a later one goes further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardAction {
    /// It failed, and the request went on: without it, as the config lets it, or without a text from outside that it could not
    /// read.
    Failed,
    /// It let the text pass.
    Allow,
    /// It changed the text.
    Rewrite,
    /// It answered in the model's place.
    Respond,
    /// It refused the text, or ended the answer.
    Refuse,
}

/// One category that a guard saw, at its worst.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flag {
    /// Namespaced category.
    pub category: String,
    /// How bad it is.
    pub severity: Severity,
    /// Confidence between 0 and 1, where the guard has one.
    pub score: Option<f32>,
}

/// Where a passage is from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Citation {
    /// The retriever that brought it.
    pub source: String,
    /// The document, as the retriever names it.
    pub file: String,
    /// The document's title, where it has one.
    pub title: Option<String>,
    /// First byte within the document, and one past the last.
    pub bytes: Option<(u32, u32)>,
}

/// A tool of the server that the model called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolRun {
    /// The call's id.
    pub call_id: String,
    /// The tool's name.
    pub name: String,
    /// JSON text, as the guards left it; none where guards of the whole answer, which do not see it, may withhold words.
    pub arguments: Option<String>,
    /// Who ran it.
    pub source: String,
    /// It failed.
    pub is_error: bool,
}

impl GuardAction {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Allow => "allow",
            Self::Rewrite => "rewrite",
            Self::Respond => "respond",
            Self::Refuse => "refuse",
        }
    }
}

impl About {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Context => "context",
            Self::Answer => "answer",
        }
    }
}

impl Report {
    /// Notes what a guard decided; of several decisions about one kind of text the furthest counts.
    pub fn judged(&mut self, stage: &str, about: About, action: GuardAction, code: Option<&str>, findings: &[Finding]) {
        let known = self.guards.iter().position(|outcome| outcome.stage == stage && outcome.about == about);
        let at = known.unwrap_or(self.guards.len());
        if known.is_none() {
            if at >= MAX_ENTRIES {
                self.omitted += 1;
                return;
            }
            let stage = stage.to_owned();
            self.guards.push(GuardOutcome { stage, about, action, code: None, flags: Vec::new() });
        }
        let outcome = &mut self.guards[at];
        if action > outcome.action || known.is_none() {
            (outcome.action, outcome.code) = (action, code.map(|code| cut(code, MAX_NAME_BYTES)));
        }
        for finding in findings {
            self.omitted += u64::from(!outcome.flag(finding));
        }
    }

    /// Notes where a passage is from.
    pub fn cited(&mut self, citation: Citation) {
        if self.citations.contains(&citation) {
            return;
        }
        bounded(&mut self.citations, citation, &mut self.omitted);
    }

    /// Notes that a tool of the server ran.
    pub fn ran(&mut self, mut run: ToolRun) {
        if let Some(arguments) = &mut run.arguments {
            let left = cut(arguments, MAX_ARGUMENTS_BYTES);
            self.omitted += u64::from(left.len() < arguments.len());
            *arguments = left;
        }
        bounded(&mut self.tool_runs, run, &mut self.omitted);
    }

    /// Notes that something happened of which nothing may be told.
    pub fn omitted(&mut self) {
        self.omitted += 1;
    }
}

impl GuardOutcome {
    /// Says whether there was room.
    fn flag(&mut self, finding: &Finding) -> bool {
        let category = cut(&finding.category, MAX_NAME_BYTES);
        if let Some(flag) = self.flags.iter_mut().find(|flag| flag.category == category) {
            flag.severity = flag.severity.max(finding.severity);
            flag.score = match (flag.score, finding.score) {
                (Some(one), Some(other)) => Some(one.max(other)),
                (one, other) => one.or(other),
            };
            return true;
        }
        let room = self.flags.len() < MAX_FLAGS;
        if room {
            self.flags.push(Flag { category, severity: finding.severity, score: finding.score });
        }
        room
    }
}

fn bounded<T>(list: &mut Vec<T>, new: T, omitted: &mut u64) {
    if list.len() < MAX_ENTRIES {
        list.push(new);
    } else {
        *omitted += 1;
    }
}

fn cut(text: &str, max: usize) -> String {
    text[..text.floor_char_boundary(max)].to_owned()
}

/// A report in the making. Clones write the same one.
#[derive(Clone, Debug, Default)]
pub struct Notebook(Arc<Mutex<Report>>);

impl Notebook {
    /// Writes into it.
    pub fn note(&self, write: impl FnOnce(&mut Report)) {
        write(&mut self.lock());
    }

    /// What is known so far.
    pub fn read(&self) -> Report {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Report> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(category: &str, severity: Severity, score: Option<f32>) -> Finding {
        Finding { category: category.into(), severity, score, message_id: None, span: None }
    }

    #[test]
    fn of_a_guards_decisions_the_furthest_counts_and_of_its_categories_the_worst() {
        let mut report = Report::default();
        let mail = |severity, score| [finding("pii:email", severity, score)];
        report.judged("g", About::Answer, GuardAction::Failed, None, &[]);
        report.judged("g", About::Answer, GuardAction::Rewrite, None, &mail(Severity::Low, Some(0.25)));
        report.judged("g", About::Answer, GuardAction::Allow, None, &mail(Severity::High, None));
        report.judged("g", About::Answer, GuardAction::Refuse, Some("pii"), &mail(Severity::Info, Some(0.5)));
        report.judged("g", About::Prompt, GuardAction::Allow, None, &[]);
        let flags = vec![Flag { category: "pii:email".into(), severity: Severity::High, score: Some(0.5) }];
        let about_answer = &report.guards[0];
        assert_eq!((about_answer.action, about_answer.code.as_deref()), (GuardAction::Refuse, Some("pii")));
        assert_eq!(about_answer.flags, flags);
        assert_eq!((report.guards[1].action, report.guards.len()), (GuardAction::Allow, 2));
    }

    #[test]
    fn what_guards_decided_is_kept_by_its_first_name() {
        let kept = r#"{"moderation":[{"stage":"g","about":"prompt","action":"allow","code":null,"flags":[]}]}"#;
        let report: Report = serde_json::from_str(kept).unwrap();
        assert_eq!(report.guards[0].stage, "g");
        assert!(serde_json::to_string(&report).unwrap().contains(r#""moderation":[{"stage":"g""#));
    }

    #[test]
    fn what_is_more_than_is_kept_is_counted() {
        let mut report = Report::default();
        let citation = |file: usize| Citation { source: "s".into(), file: file.to_string(), title: None, bytes: None };
        (0..70).for_each(|file| report.cited(citation(file)));
        report.cited(citation(1));
        (0..66).for_each(|i| report.judged(&i.to_string(), About::Prompt, GuardAction::Allow, None, &[]));
        let findings: Vec<Finding> = (0..33).map(|i| finding(&i.to_string(), Severity::Info, None)).collect();
        report.judged("0", About::Prompt, GuardAction::Allow, None, &findings);
        assert_eq!((report.citations.len(), report.guards.len(), report.omitted), (64, 64, 6 + 2 + 1));
    }
}
