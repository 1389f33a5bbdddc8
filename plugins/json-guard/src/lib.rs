//! An output guard that holds answers to a JSON schema: what does not hold it is refused with what is wrong, or mended
//! where that is safe. Read next: [`schema`] for what is checked, [`repair`] for what is mended.

pub mod json;
pub mod number;
pub mod repair;
#[allow(missing_docs, reason = "nodes, types and bounds are named after their keywords")]
pub mod schema;
pub mod unique;
pub mod validate;

use repair::Repair;
use schema::Schema;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::ops::Range;
use tidegate_plugin_sdk::host::log;
use tidegate_plugin_sdk::host::metrics::count;
use tidegate_plugin_sdk::{
    Context, Descriptor, Edit, Error, Finding, Findings, Message, Output, OutputGuard, Part, Plugin, Refusal, Setting,
    Severity, Span, Verdict,
};

const MESSAGE: &str = "The answer did not have the form that is asked for";

/// The settings.
#[derive(Debug, Deserialize)]
pub struct Config {
    schema: Box<RawValue>,
    ignored_keywords: Vec<String>,
    repair: Vec<Repair>,
    on_invalid: OnInvalid,
    message: String,
    say_why: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OnInvalid {
    Refuse,
    Flag,
}

/// The plugin.
#[derive(Debug)]
pub struct JsonGuard {
    schema: Schema,
    repair: Vec<Repair>,
    on_invalid: OnInvalid,
    message: String,
    say_why: bool,
}

/// What became of one choice.
enum Judged {
    /// It holds the schema, with what has to be taken away around it.
    Valid(Vec<Edit>),
    Invalid(Vec<String>),
    /// It has no text to judge: it calls tools, whatever it says before that, or refuses.
    NoText,
}

impl Plugin for JsonGuard {
    type Config = Config;

    fn describe() -> Descriptor {
        Descriptor::new("json-guard", env!("CARGO_PKG_VERSION"), "Holds answers to a JSON schema")
            .setting(Setting::required("schema", r#"{"type":"object"}"#, "JSON Schema of an answer"))
            .setting(Setting::texts("ignored_keywords", &[], "Keywords of the schema that need not be checked"))
            .setting(Setting::choices("repair", &["fences", "prose"], &["fences", "prose"], "What may be taken away"))
            .setting(Setting::choice("on_invalid", &["refuse", "flag"], "refuse", "What to do about other answers"))
            .setting(Setting::text("message", MESSAGE, "What the client reads when an answer is refused"))
            .setting(Setting::switch("say_why", true, "Say after the message what is wrong"))
            .metric("answers_valid", "answers that held the schema as they were")
            .metric("answers_repaired", "answers that held it once fences or prose were gone")
            .metric("answers_invalid", "answers that did not hold it")
            .mutates()
            .deterministic()
    }

    fn configure(config: Config) -> Result<Self, Error> {
        let Config { schema, ignored_keywords, repair, on_invalid, message, say_why } = config;
        let read = json::parse(schema.get()).map_err(|problem| format!("byte {}: {}", problem.at, problem.what));
        let schema = read.and_then(|json| Schema::new(&json, &ignored_keywords));
        let schema = schema.map_err(|problem| Error::InvalidConfig(format!("`schema`: {problem}")))?;
        Ok(Self { schema, repair, on_invalid, message, say_why })
    }
}

impl OutputGuard for JsonGuard {
    fn inspect_output(&self, _: &Context, output: &Output) -> Result<Verdict, Error> {
        let (mut findings, mut edits, mut wrong) = (Findings::default(), Vec::new(), None);
        for (idx, choice) in output.choices.iter().enumerate() {
            match self.judge(choice, output.finish_reasons.get(idx).map(String::as_str)) {
                Judged::NoText => {}
                Judged::Valid(of_choice) => {
                    count(if of_choice.is_empty() { "answers_valid" } else { "answers_repaired" }, 1);
                    edits.extend(of_choice);
                }
                Judged::Invalid(problems) => {
                    count("answers_invalid", 1);
                    findings.push(Finding::new("json-guard:invalid", Severity::Medium).in_message(&choice.id));
                    wrong.get_or_insert(problems);
                }
            }
        }
        let verdict = match wrong {
            Some(problems) if self.on_invalid == OnInvalid::Refuse => Verdict::refuse(self.refusal(&problems)),
            wrong => {
                // A refusal has it as its reason.
                wrong.iter().for_each(|problems| log::info(&problems.join("; ")));
                Verdict::rewrite(edits)
            }
        };
        Ok(verdict.with(findings.into_list()))
    }
}

impl JsonGuard {
    fn judge(&self, choice: &Message, finish: Option<&str>) -> Judged {
        let texts: Vec<(usize, &str)> = choice
            .parts
            .iter()
            .enumerate()
            .filter_map(|(idx, part)| if let Part::Text(text) = part { Some((idx, text.as_str())) } else { None })
            .collect();
        if is_no_answer(choice, &texts, finish) {
            return Judged::NoText;
        }
        let text: String = texts.iter().map(|(_, text)| *text).collect();
        let json = repair::find(&text, &self.repair);
        let problems = match json::parse(&text[json.clone()]) {
            Ok(value) => validate::problems(&self.schema, &value),
            Err(_) if finish == Some("length") => {
                vec!["the answer was cut off at its limit of tokens; allow more of them".into()]
            }
            Err(problem) => vec![format!("it is no JSON: {} (byte {})", problem.what, json.start + problem.at)],
        };
        match problems.is_empty() {
            true if text[..json.start].chars().chain(text[json.end..].chars()).all(json::is_space) => {
                Judged::Valid(Vec::new())
            }
            true => Judged::Valid(outside(choice, &texts, &json)),
            false => Judged::Invalid(problems),
        }
    }

    fn refusal(&self, problems: &[String]) -> Refusal {
        let told = problems.join("; ");
        let message = if self.say_why { format!("{}: {told}.", self.message) } else { format!("{}.", self.message) };
        Refusal::new("not_the_schema", message).because(told)
    }
}

/// Whether a choice is no answer yet, or none at all. Models say a word before they call a tool.
fn is_no_answer(choice: &Message, texts: &[(usize, &str)], finish: Option<&str>) -> bool {
    let has = |is: fn(&Part) -> bool| choice.parts.iter().any(is);
    let calls = has(|part| matches!(part, Part::ToolCall(_)));
    let is_blank = texts.iter().all(|(_, text)| text.trim().is_empty());
    (calls && finish == Some("tool_calls")) || (is_blank && (calls || has(|part| matches!(part, Part::Refusal(_)))))
}

/// Takes away what is outside of a range of the joined texts.
fn outside(choice: &Message, texts: &[(usize, &str)], kept: &Range<usize>) -> Vec<Edit> {
    let mut edits = Vec::new();
    let mut start = 0;
    for (part, text) in texts {
        let local = |at: usize| at.clamp(start, start + text.len()) - start;
        for span in [0..local(kept.start), local(kept.end)..text.len()] {
            if !span.is_empty() {
                edits.push(Edit::ReplaceText {
                    message_id: choice.id.clone(),
                    part: u32::try_from(*part).unwrap_or(u32::MAX),
                    span: Span::of(span),
                    text: String::new(),
                });
            }
        }
        start += text.len();
    }
    edits
}

tidegate_plugin_sdk::export!(JsonGuard: OutputGuard);

#[cfg(test)]
mod labelled;
#[cfg(test)]
mod tests;
