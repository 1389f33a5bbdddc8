//! A guard that asks a classifier: each text gets a score for each of OpenAI's moderation categories, and the config
//! says from which score on a category is reported or refused. Prompts, text from outside and whole answers.
//! Read next: [`rules`], then [`pieces`].

pub mod pieces;
pub mod rules;

use rules::{Act, CATEGORIES, Entry, Over, Rules};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use tidegate_plugin_sdk::host::metrics::count;
use tidegate_plugin_sdk::host::models;
use tidegate_plugin_sdk::json::{list, quote};
use tidegate_plugin_sdk::{
    Capability, Context, Descriptor, Error, Finding, Findings, Message, Output, OutputGuard, Part, Plugin, Prompt,
    PromptGuard, Refusal, Role, Setting, Severity, Verdict, some_of,
};

const MESSAGE: &str = "This server does not allow that.";

/// What the host lets one question hold.
const MAX_TEXTS: usize = 256;
/// Less than the stage's `output_bytes` of 1 MiB, which the host counts all of a question by: its list of texts costs some
/// bytes for each, and one that is larger ends the call.
const MAX_QUESTION_BYTES: usize = 900 << 10;
const TEXT_BYTES: usize = 32;
/// Different pieces of one call, which are four questions: a classifier that is asked more takes more time than a stage has, and
/// a missed deadline would count against the guard of everybody.
const MAX_PIECES: usize = 1024;
/// Of more texts of one message small neighbours are put together.
const MAX_ALONE: usize = 16;

/// The settings.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    model: String,
    threshold: f32,
    action: Act,
    categories: BTreeMap<String, Entry>,
    labels: BTreeMap<String, String>,
    roles: Vec<String>,
    history: bool,
    piece_bytes: usize,
    message: String,
}

/// The plugin.
#[derive(Debug)]
pub struct ModerationGuard {
    config: Config,
    rules: Rules,
}

/// A text that the classifier is asked about, and the messages that it stands in.
struct Piece<'a> {
    text: &'a str,
    messages: Vec<&'a str>,
}

/// What all texts of one call came to.
#[derive(Default)]
struct Seen {
    findings: Findings,
    /// The category to refuse for, with the highest score.
    worst: Option<Over>,
}

impl Plugin for ModerationGuard {
    type Config = Config;

    fn describe() -> Descriptor {
        let roles = ["system", "developer", "user", "assistant", "tool"];
        let summary = "Holds prompts and answers to the thresholds of moderation categories";
        let number = r#"{"type":"number","exclusiveMinimum":0,"maximum":1}"#;
        let acts = r#"{"type":"string","enum":["block","flag","ignore"]}"#;
        let of_category =
            format!("{{\"type\":\"object\",\"properties\":{{\"threshold\":{number},\"action\":{acts}}}}}");
        let each = CATEGORIES.map(|category| format!("{}:{of_category}", quote(category))).join(",");
        let categories = format!("{{\"type\":\"object\",\"properties\":{{{each}}}}}");
        let names = list(CATEGORIES.iter().map(|category| quote(category)));
        let labels =
            format!("{{\"type\":\"object\",\"additionalProperties\":{{\"type\":\"string\",\"enum\":{names}}}}}");
        Descriptor::new("moderation-guard", env!("CARGO_PKG_VERSION"), summary)
            .setting(Setting::text("model", "moderation", "Alias of the classifier, in the grant"))
            .setting(Setting::new("threshold", number, "0.5", "From this score on a category counts"))
            .setting(Setting::choice("action", &["block", "flag", "ignore"], "block", "What is then done"))
            .setting(Setting::new("categories", &categories, "{}", "Threshold and action of single categories"))
            .setting(Setting::new("labels", &labels, "{}", "Categories of a classifier that has names of its own"))
            .setting(Setting::some_choices(
                "roles",
                &roles,
                &["user", "tool"],
                "Whose messages of a prompt are looked at",
            ))
            .setting(Setting::switch("history", true, "Look at messages before the last answer too"))
            .setting(Setting::integer("piece_bytes", 4_000, 256, 100_000, "Longer texts are asked about in pieces"))
            .setting(Setting::text("message", MESSAGE, "What the client reads when something is refused"))
            .needs(Capability::Models, "asks a classifier about texts")
            .metric("texts", "pieces that the classifier was asked about")
            .metric("blocked", "prompts, texts from outside and answers that were refused")
            .metric("flagged", "those that were reported only")
    }

    fn configure(config: Config) -> Result<Self, Error> {
        some_of("roles", &config.roles)?;
        let rules = Rules::new(config.threshold, config.action, &config.categories, &config.labels)?;
        Ok(Self { config, rules })
    }
}

impl PromptGuard for ModerationGuard {
    fn inspect_prompt(&self, _: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
        let from = if self.config.history { 0 } else { behind_last_answer(&prompt.messages) };
        self.judge(prompt.messages[from..].iter().filter(|message| self.looks_at(message)))
    }
}

impl OutputGuard for ModerationGuard {
    fn inspect_output(&self, _: &Context, output: &Output) -> Result<Verdict, Error> {
        self.judge(output.choices.iter())
    }
}

impl ModerationGuard {
    fn looks_at(&self, message: &Message) -> bool {
        let role = match &message.role {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
            Role::Other(name) => name,
        };
        let from_outside = message.attrs.iter().any(|(key, _)| key == "source");
        from_outside || self.config.roles.iter().any(|chosen| chosen == role)
    }

    fn judge<'a>(&self, messages: impl Iterator<Item = &'a Message>) -> Result<Verdict, Error> {
        let texts: Vec<(&str, Cow<'a, str>)> = messages
            .flat_map(|message| self.texts(message).into_iter().map(|text| (message.id.as_str(), text)))
            .collect();
        let pieces = self.pieces(&texts)?;
        let mut seen = Seen::default();
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let sizes = rest.iter().map(|piece| piece.text.len() + TEXT_BYTES);
            let (asked, behind) = rest.split_at(pieces::fit(sizes, MAX_TEXTS, MAX_QUESTION_BYTES));
            self.ask(asked, &mut seen)?;
            rest = behind;
        }
        Ok(self.verdict(seen))
    }

    /// What is judged of a message: its text parts together, which are one text to the model, and its texts alone, so that no part
    /// hides another. Of many parts small neighbours are one text: a part of its own costs a question as much as a piece.
    fn texts<'a>(&self, message: &'a Message) -> Vec<Cow<'a, str>> {
        let mut parts =
            message.parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None });
        let joined: Option<Cow<'a, str>> =
            parts.clone().nth(1).map(|_| Cow::Owned(parts.by_ref().map(String::as_str).collect()));
        let alone = message.texts().map(|(_, text)| text).collect();
        joined.into_iter().chain(pieces::gathered(alone, MAX_ALONE, self.config.piece_bytes)).collect()
    }

    /// The different pieces, in the order in which they stand there first.
    fn pieces<'t>(&self, texts: &'t [(&'t str, Cow<'_, str>)]) -> Result<Vec<Piece<'t>>, Error> {
        let mut pieces: Vec<Piece<'t>> = Vec::new();
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        for (message, text) in texts {
            for text in pieces::cut(text, self.config.piece_bytes) {
                let at = *known.entry(text).or_insert(pieces.len());
                if at == MAX_PIECES {
                    return Err(self.too_many());
                }
                match pieces.get_mut(at) {
                    Some(piece) if piece.messages.last() == Some(message) => {}
                    Some(piece) => piece.messages.push(message),
                    None => pieces.push(Piece { text, messages: vec![message] }),
                }
            }
        }
        Ok(pieces)
    }

    fn too_many(&self) -> Error {
        let bytes = self.config.piece_bytes;
        Error::InvalidInput(format!(
            "the text is too long to moderate: it makes more than {MAX_PIECES} different pieces of at most {bytes} bytes; \
             send less text, or fewer messages"
        ))
    }

    fn ask(&self, asked: &[Piece<'_>], seen: &mut Seen) -> Result<(), Error> {
        let texts: Vec<String> = asked.iter().map(|piece| piece.text.to_owned()).collect();
        count("texts", texts.len() as u64);
        let answers = models::classify(&self.config.model, &texts)?;
        if answers.len() != texts.len() {
            return Err(Error::Other(format!("{} answers about {} texts", answers.len(), texts.len())));
        }
        for (piece, labels) in asked.iter().zip(&answers) {
            for over in self.rules.judge(labels)? {
                piece.messages.iter().for_each(|message| seen.take(message, over));
            }
        }
        Ok(())
    }

    fn verdict(&self, seen: Seen) -> Verdict {
        let verdict = match seen.worst {
            Some(Over { category, score, .. }) => {
                count("blocked", 1);
                let refusal = Refusal::new("moderation", &self.config.message);
                Verdict::refuse(refusal.because(format!("{category} with a score of {score:.2}")))
            }
            None => {
                count("flagged", u64::from(seen.findings.count() > 0));
                Verdict::allow()
            }
        };
        verdict.with(seen.findings.into_list())
    }
}

/// Where the messages behind the last answer begin. What stands last in a request is no answer to it: it would put all that is
/// asked before it out of sight.
fn behind_last_answer(messages: &[Message]) -> usize {
    let asked = messages.iter().rposition(|message| matches!(message.role, Role::User | Role::Tool));
    let before = &messages[..asked.unwrap_or_default()];
    before.iter().rposition(|message| message.role == Role::Assistant).map_or(0, |at| at + 1)
}

impl Seen {
    fn take(&mut self, message: &str, over: Over) {
        let severity = if over.act == Act::Block { Severity::High } else { Severity::Medium };
        let mut finding = Finding::new(format!("openai:{}", over.category), severity).in_message(message);
        finding.score = Some(over.score);
        self.findings.push(finding);
        if over.act == Act::Block && self.worst.is_none_or(|worst| over.score > worst.score) {
            self.worst = Some(over);
        }
    }
}

tidegate_plugin_sdk::export!(ModerationGuard: PromptGuard, OutputGuard);

#[cfg(test)]
mod tests;
