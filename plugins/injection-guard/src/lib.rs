//! A prompt guard for text that wants to take the model over: in what a user writes, in retrieved passages and
//! memories, and in tool results.
//!
//! It knows signs, not intentions: each sighting has a weight, the weights of a message add up to a score, and the
//! score is compared with a threshold for where the text came from. Text from outside has no business giving
//! instructions, so the same words weigh more there. Read next: [`signal`] for scores, [`scan`] for what is read, [`rules`] for words.

pub mod disguise;
mod fold;
pub mod markers;
pub mod rules;
pub mod scan;
mod script;
#[allow(missing_docs, reason = "names say it: a signal, its weights")]
pub mod signal;
#[allow(missing_docs, reason = "names say it: a word's place and class")]
pub mod tokens;
#[allow(missing_docs, reason = "classes of words are what they list")]
pub mod words;

use serde::Deserialize;
use signal::{Sighting, Signal, Source, score};
use std::fmt;
use tidegate_plugin_sdk::host::log;
use tidegate_plugin_sdk::host::metrics::count;
use tidegate_plugin_sdk::{
    Changes, Context, Descriptor, Error, Finding, Findings, Message, Part, Plugin, Prompt, PromptGuard, Refusal, Role,
    Setting, Severity, Span, Verdict, some_of,
};
use words::Words;

const MESSAGE: &str = "The request looks like an attempt to change what this assistant may do.";
/// What stands in the place of a tool result that the client sent along.
const REMOVED: &str = "[removed: this text gave instructions to the model]";

/// The settings.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    signals: Vec<String>,
    user_action: UserAction,
    outside_action: OutsideAction,
    user_threshold: f32,
    retrieved_threshold: f32,
    tool_threshold: f32,
    roles: Vec<String>,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum UserAction {
    Block,
    Flag,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OutsideAction {
    Drop,
    Block,
    Flag,
}

/// The plugin.
#[derive(Debug)]
pub struct InjectionGuard {
    words: Words,
    config: Config,
}

/// A message that is above its threshold.
struct Suspect<'a> {
    message: &'a Message,
    source: Source,
    score: f32,
    /// The heaviest sign.
    signal: Signal,
    /// How the heaviest of those that were disguised was read.
    read_as: Option<&'static str>,
}

/// For the log: the host keeps no attributes of findings.
impl fmt::Display for Suspect<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in `{}`, score {:.2}", self.signal.as_str(), self.message.id, self.score)?;
        self.read_as.map_or(Ok(()), |how| write!(f, ", read as {how}"))
    }
}

impl Plugin for InjectionGuard {
    type Config = Config;

    fn describe() -> Descriptor {
        let signals = Signal::ALL.map(Signal::as_str);
        let roles = ["system", "developer", "user", "assistant", "tool"];
        let threshold = |name, default, summary| {
            Setting::new(name, r#"{"type":"number","minimum":0.05,"maximum":1}"#, default, summary)
        };
        Descriptor::new("injection-guard", env!("CARGO_PKG_VERSION"), "Finds signs of prompt injection")
            .setting(Setting::some_choices("signals", &signals, &signals, "What to look for"))
            .setting(Setting::choice("user_action", &["block", "flag"], "block", "What to do about a user's text"))
            .setting(Setting::choice(
                "outside_action",
                &["drop", "block", "flag"],
                "drop",
                "What to do about passages, memories and tool results",
            ))
            .setting(threshold("user_threshold", "0.7", "Score of a user's text that is too much"))
            .setting(threshold("retrieved_threshold", "0.5", "Score of a passage or memory that is too much"))
            .setting(threshold("tool_threshold", "0.5", "Score of a tool result that is too much"))
            .setting(Setting::some_choices("roles", &roles, &["user", "tool"], "Whose messages are looked at"))
            .setting(Setting::text("message", MESSAGE, "What the client reads when a request is blocked"))
            .metric("user_texts", "messages of users above their threshold")
            .metric("outside_texts", "passages, memories and tool results above their threshold")
            .mutates()
            .deterministic()
    }

    fn configure(config: Config) -> Result<Self, Error> {
        let thresholds = [
            ("user_threshold", config.user_threshold),
            ("retrieved_threshold", config.retrieved_threshold),
            ("tool_threshold", config.tool_threshold),
        ];
        if let Some((name, value)) = thresholds.into_iter().find(|(_, value)| !(0.05..=1.0).contains(value)) {
            return Err(Error::InvalidConfig(format!("`{name}` is {value}; it is 0.05 to 1")));
        }
        some_of("signals", &config.signals)?;
        some_of("roles", &config.roles)?;
        Ok(Self { words: Words::new(), config })
    }
}

impl PromptGuard for InjectionGuard {
    fn inspect_prompt(&self, _: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
        let mut findings = Findings::default();
        let looked_at = prompt.messages.iter().filter(|message| self.looks_at(message));
        let suspects: Vec<Suspect<'_>> = looked_at.filter_map(|message| self.suspect(message, &mut findings)).collect();
        Ok(self.verdict(&suspects).with(findings.into_list()))
    }
}

impl InjectionGuard {
    fn looks_at(&self, message: &Message) -> bool {
        let name = match message.role {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            // Roles that nobody could have named in the config are looked at.
            Role::Other(_) => return true,
        };
        is_from_outside(message) || self.config.roles.iter().any(|role| role == name)
    }

    /// Looks at a message, and reports what it shows where that is too much.
    fn suspect<'a>(&self, message: &'a Message, findings: &mut Findings) -> Option<Suspect<'a>> {
        let source = source(message);
        let seen = self.see(message, source);
        let score = score(&seen.iter().map(|(sighting, _)| sighting.clone()).collect::<Vec<_>>(), source);
        // A score of 0.7 from sums of f32 may be a hair below.
        if score + 1e-4 < self.threshold(source) {
            return None;
        }
        let heaviest = |wanted: fn(&Sighting) -> bool| {
            let wanted = seen.iter().map(|(sighting, _)| sighting).filter(|sighting| wanted(sighting));
            wanted.max_by_key(|sighting| sighting.score(source))
        };
        let signal = heaviest(|_| true)?.signal;
        let read_as = heaviest(|sighting| sighting.read_as.is_some()).and_then(|sighting| sighting.read_as);
        count(if source == Source::User { "user_texts" } else { "outside_texts" }, 1);
        for (sighting, is_in_texts) in &seen {
            findings.push(finding(message, sighting, *is_in_texts, source));
        }
        Some(Suspect { message, source, score, signal, read_as })
    }

    /// Sightings in a message that weigh something, each with whether it is in the text parts: then its place is that in
    /// all of them joined, which are one text to the model.
    fn see(&self, message: &Message, source: Source) -> Vec<(Sighting, bool)> {
        let mut seen: Vec<(Sighting, bool)> =
            self.see_texts(message, source).into_iter().map(|sighting| (sighting, true)).collect();
        for part in message.parts.iter().filter(|part| !matches!(part, Part::Text(_))) {
            let structured = match part {
                Part::ToolOutcome(outcome) => outcome.structured.as_deref(),
                _ => None,
            };
            for text in part.as_text().into_iter().chain(structured) {
                seen.extend(self.see_text(text, source).map(|sighting| (sighting, false)));
            }
        }
        seen
    }

    /// What the text parts show together, and what one of several shows alone: another part cannot hide it.
    fn see_texts(&self, message: &Message, source: Source) -> Vec<Sighting> {
        let texts =
            || message.parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None });
        let only = texts().next().filter(|_| texts().nth(1).is_none());
        if let Some(only) = only {
            return self.see_text(only, source).collect();
        }
        let joined: String = texts().map(String::as_str).collect();
        let mut seen: Vec<Sighting> = self.see_text(&joined, source).collect();
        let mut start = 0;
        for text in texts() {
            let moved = |sighting: Sighting| Sighting {
                range: start + sighting.range.start..start + sighting.range.end,
                ..sighting
            };
            seen.extend(self.see_text(text, source).map(moved));
            start += text.len();
        }
        scan::merged(seen)
    }

    fn see_text(&self, text: &str, source: Source) -> impl Iterator<Item = Sighting> {
        let wanted = move |sighting: &Sighting| {
            sighting.score(source) > 0 && self.config.signals.iter().any(|s| s == sighting.signal.as_str())
        };
        scan::scan(&self.words, text).into_iter().filter(wanted)
    }

    fn threshold(&self, source: Source) -> f32 {
        match source {
            Source::User => self.config.user_threshold,
            Source::Retrieved => self.config.retrieved_threshold,
            Source::Tool => self.config.tool_threshold,
        }
    }

    fn verdict(&self, suspects: &[Suspect<'_>]) -> Verdict {
        let ends = |suspect: &&Suspect<'_>| match suspect.source {
            Source::User => self.config.user_action == UserAction::Block,
            // The host asks about what it fetched itself alone, and drops what is refused.
            _ if is_from_outside(suspect.message) => self.config.outside_action != OutsideAction::Flag,
            _ => self.config.outside_action == OutsideAction::Block,
        };
        if let Some(suspect) = suspects.iter().find(ends) {
            return self.refuse(suspect);
        }
        suspects.iter().filter(|suspect| suspect.read_as.is_some()).for_each(|suspect| log::info(&suspect.to_string()));
        let dropped = |suspect: &&Suspect<'_>| {
            suspect.source != Source::User && self.config.outside_action == OutsideAction::Drop
        };
        let mut changes = Changes::default();
        suspects.iter().filter(dropped).for_each(|suspect| remove(suspect.message, &mut changes));
        match (changes.into_edits(), suspects.first()) {
            (None, Some(suspect)) => self.refuse(suspect),
            (edits, _) => Verdict::rewrite(edits.unwrap_or_default()),
        }
    }

    fn refuse(&self, suspect: &Suspect<'_>) -> Verdict {
        Verdict::refuse(Refusal::new("prompt_injection", self.config.message.clone()).because(suspect.to_string()))
    }
}

/// The host notes where it has a text from.
fn is_from_outside(message: &Message) -> bool {
    message.attrs.iter().any(|(key, _)| key == "source")
}

fn source(message: &Message) -> Source {
    if message.role == Role::Tool || message.parts.iter().any(|part| matches!(part, Part::ToolOutcome(_))) {
        Source::Tool
    } else if is_from_outside(message) {
        Source::Retrieved
    } else {
        Source::User
    }
}

/// All text of a message goes: what a part of it says is not to be trusted when another part lies.
fn remove<'a>(message: &'a Message, changes: &mut Changes<'a>) {
    for (part, text) in message.texts().filter(|(_, text)| !text.is_empty()) {
        changes.replace(&message.id, part, text, 0..text.len(), REMOVED.into());
    }
}

fn finding(message: &Message, sighting: &Sighting, is_in_texts: bool, source: Source) -> Finding {
    let score = sighting.score(source);
    let severity = match score {
        75.. => Severity::High,
        45.. => Severity::Medium,
        _ => Severity::Low,
    };
    let category = format!("injection-guard:{}", sighting.signal.as_str());
    let mut finding = Finding::new(category, severity).in_message(&message.id);
    finding.score = Some(f32::from(score) / 100.0);
    finding.span = is_in_texts.then(|| Span::of(sighting.range.clone()));
    finding
}

tidegate_plugin_sdk::export!(InjectionGuard: PromptGuard);

#[cfg(test)]
mod labelled;
#[cfg(test)]
mod tests;
