//! Answers a question that was answered before: as a prompt guard it looks the question up and answers in the model's
//! place, as a memory it keeps what the model said. First the very same request, then a question that means the same.
//! It never fails a request: what goes wrong here costs an answer of the model. Read next: [`asked`], [`store`].

pub mod asked;
pub mod note;
pub mod store;

use asked::{Asked, digest};
use note::Note;
use serde::Deserialize;
use tidegate_plugin_sdk::host::metrics::count;
use tidegate_plugin_sdk::host::{log, models};
use tidegate_plugin_sdk::{
    Capability, Context, Descriptor, Error, Exchange, Finding, Item, Memory, Plugin, Prompt, PromptGuard, Question,
    Setting, Severity, Verdict,
};

/// The settings.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    semantic: bool,
    model: String,
    collection: String,
    threshold: f32,
    ttl_s: u64,
    max_entries: i64,
    scope: String,
    max_temperature: f32,
    tools: bool,
    max_question_bytes: usize,
    max_near_bytes: usize,
    max_answer_bytes: usize,
    generation: String,
}

/// The plugin.
#[derive(Debug)]
pub struct SemanticCache(Config);

/// What the cache knows about a question.
enum Known {
    Answer { answer: String, score: Option<f32> },
    Nothing(Option<Vec<f32>>),
}

impl Plugin for SemanticCache {
    type Config = Config;

    fn describe() -> Descriptor {
        let threshold = r#"{"type":"number","exclusiveMinimum":0,"maximum":1}"#;
        let temperature = r#"{"type":"number","minimum":0,"maximum":2}"#;
        Descriptor::new("semantic-cache", env!("CARGO_PKG_VERSION"), "Answers a question that was answered before")
            .setting(Setting::switch("semantic", true, "Find questions that mean the same, not only the same request"))
            .setting(Setting::text("model", "embedder", "Alias of the model that makes vectors, in the grant"))
            .setting(Setting::text("collection", "answers", "Collection of the questions' vectors, in the grant"))
            .setting(Setting::new("threshold", threshold, "0.95", "The least cosine of questions that mean the same"))
            .setting(Setting::integer("ttl_s", 3_600, 1, 2_592_000, "How long an answer is given again"))
            .setting(Setting::integer("max_entries", 1_000, 1, 100_000, "Answers of a tenant; then the oldest go"))
            .setting(Setting::choice("scope", &["tenant", "caller"], "tenant", "Who shares answers"))
            .setting(Setting::new("max_temperature", temperature, "1.0", "Requests above it are left alone"))
            .setting(Setting::switch("tools", false, "Answer requests that bring tools"))
            .setting(Setting::integer("max_question_bytes", 8_000, 1, 1_000_000, "Longer questions are left alone"))
            .setting(Setting::integer(
                "max_near_bytes",
                500,
                1,
                1_000_000,
                "Longer questions are answered as the same only",
            ))
            .setting(Setting::integer("max_answer_bytes", 65_536, 1, 1_000_000, "Longer answers are not kept"))
            .setting(Setting::text("generation", "", "Another text here forgets all answers"))
            .needs(Capability::Kv, "keeps answers")
            .needs(Capability::Vectors, "finds questions that mean the same")
            .needs(Capability::Models, "makes vectors of questions")
            .metric("exact", "requests that were answered as they had been before")
            .metric("near", "requests that were answered as one of the same meaning had been")
            .metric("missed", "requests that the cache had no answer to")
            .metric("passed", "requests that the settings keep out of the cache")
            .metric("kept", "answers that were kept")
            .metric("failed", "what storage or the model of vectors could not do")
    }

    fn configure(config: Config) -> Result<Self, Error> {
        let bad = |what: String| Err(Error::InvalidConfig(what));
        if !(config.threshold > 0.0 && config.threshold <= 1.0) {
            return bad(format!("`threshold` is {}; it is a cosine above 0, at most 1", config.threshold));
        }
        if !(0.0..=2.0).contains(&config.max_temperature) {
            return bad(format!("`max_temperature` is {}; it is from 0 to 2", config.max_temperature));
        }
        if config.max_entries < 1 || config.ttl_s < 1 {
            return bad("`max_entries` and `ttl_s` are at least 1".into());
        }
        Ok(Self(config))
    }
}

impl PromptGuard for SemanticCache {
    fn inspect_prompt(&self, ctx: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
        let Some(asked) = Asked::read(&self.0, ctx, prompt) else {
            if !is_fetched(prompt) {
                count("passed", 1);
            }
            return Ok(Verdict::allow());
        };
        Ok(match self.look_up(&asked) {
            Known::Answer { answer, score } => {
                let kind = if score.is_some() { "near" } else { "exact" };
                count(kind, 1);
                let mut finding = Finding::new(format!("semantic-cache:{kind}"), Severity::Info);
                finding.score = score.map(|score| score.clamp(0.0, 1.0));
                Verdict::respond(answer).with(vec![finding])
            }
            Known::Nothing(vector) => {
                count("missed", 1);
                Verdict { attrs: Note::new(&asked, vector.as_deref()).into_attrs(), ..Verdict::allow() }
            }
        })
    }
}

/// Whether this is no request but a text that was fetched for one, a passage say: the host asks about each of them.
fn is_fetched(prompt: &Prompt) -> bool {
    matches!(&prompt.messages[..], [only] if asked::is_from_outside(only))
}

impl SemanticCache {
    fn look_up(&self, asked: &Asked) -> Known {
        match store::exact(&asked.key(), &asked.context) {
            Ok(Some(answer)) => return Known::Answer { answer, score: None },
            Ok(None) => {}
            Err(problem) => failed("the answers cannot be read", &problem),
        }
        let Some(vector) = self.vector(&asked.question) else { return Known::Nothing(None) };
        match store::near(&self.0, asked, &vector) {
            Ok(Some((answer, score))) => Known::Answer { answer, score: Some(score) },
            Ok(None) => Known::Nothing(Some(vector)),
            Err(problem) => {
                failed("near questions cannot be looked for", &problem);
                Known::Nothing(Some(vector))
            }
        }
    }

    /// The question's vector, where there is to be one and the model makes one that is fit to be compared. Of a long question none:
    /// two with the same document in front mean the same to a model that reads no further than that.
    fn vector(&self, question: &str) -> Option<Vec<f32>> {
        if !self.0.semantic || question.len() > self.0.max_near_bytes {
            return None;
        }
        let vectors = models::embed(&self.0.model, &[question.to_owned()]);
        let vector = vectors.and_then(|mut vectors| match vectors.pop() {
            Some(vector) if vectors.is_empty() && is_direction(&vector) => Ok(vector),
            _ => Err(Error::Other("the model's vector is none".into())),
        });
        vector.inspect_err(|problem| failed("there is no vector of the question", problem)).ok()
    }
}

fn is_direction(vector: &[f32]) -> bool {
    let length: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    length.is_finite() && length > 0.0 && vector.len() <= 4_096
}

fn failed(what: &str, problem: &Error) {
    count("failed", 1);
    log::warn(&format!("{what}: {problem}"));
}

impl Memory for SemanticCache {
    /// Nothing: an answer that is known was given by the guard.
    fn recall(&self, _: &Context, _: &Question) -> Result<Vec<Item>, Error> {
        Ok(Vec::new())
    }

    /// Keeps an answer that came to its own end as the model that was asked gave it, past all guards, to the question as the guard saw it.
    fn remember(&self, _: &Context, exchange: &Exchange) -> Result<Vec<Item>, Error> {
        let attr = |name: &str| exchange.attrs.iter().find(|(n, _)| n == name).map(|(_, json)| json.as_str());
        let says = |name: &str, json: &str| attr(name) == Some(json);
        let is_flawed = ["changed", "unjudged", "incomplete"].iter().any(|flaw| says(flaw, "true"));
        let is_whole = says("finish-reason", "\"stop\"") && !is_flawed;
        let (Some(note), [question, answer], true) = (Note::find(&exchange.attrs), &exchange.messages[..], is_whole)
        else {
            return Ok(Vec::new());
        };
        let said = |of: &tidegate_plugin_sdk::Message| of.texts().map(|(_, text)| text).collect::<String>();
        let (question, answer) = (said(question), said(answer));
        let is_fit = digest(&question) == note.question && note.is_answered(attr("model"));
        if !is_fit || answer.is_empty() || answer.len() > self.0.max_answer_bytes {
            return Ok(Vec::new());
        }
        match store::keep(&self.0, &note.key, &note.context, note.vector(), &answer) {
            Ok(is_kept) => count("kept", is_kept.into()),
            Err(problem) => failed("an answer is not kept", &problem),
        }
        Ok(Vec::new())
    }

    /// Answers are nobody's: they end by their time, or by another `generation`.
    fn forget(&self, _: &Context, _: &[String]) -> Result<u32, Error> {
        Ok(0)
    }
}

tidegate_plugin_sdk::export!(SemanticCache: PromptGuard, Memory);

#[cfg(test)]
mod tests;
