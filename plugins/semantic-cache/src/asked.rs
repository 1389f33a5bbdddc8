//! What was asked, as the cache tells it apart: the question itself, and everything else that can change its answer.
//! Two requests share answers only where all of the rest is the same to the byte, but for what changes no answer.

use crate::Config;
use sha2::{Digest, Sha256};
use tidegate_plugin_sdk::{Context, Message, Part, Prompt, Role};

/// Parameters that change nothing about an answer.
pub(crate) const HARMLESS: [&str; 4] = ["metadata", "store", "service_tier", "prompt_cache_key"];

/// Names of a caller's users: labels too, but where each caller has answers of its own, each of its users has.
const USERS: [&str; 2] = ["user", "safety_identifier"];

/// The parameter by which the host names other memories of the caller: what they bring comes behind every guard.
const MEMORIES: &str = "tidegate_memories";

/// The temperature of a request that names none.
const DEFAULT_TEMPERATURE: f32 = 1.0;

/// A request that may be answered from the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The user's last words.
    pub question: String,
    /// Digest of all the rest.
    pub context: String,
    /// The model that is asked, as JSON.
    pub model: String,
}

impl Asked {
    /// The request; `None` where the settings keep it out of the cache.
    pub fn read(config: &Config, ctx: &Context, prompt: &Prompt) -> Option<Self> {
        let (last, before) = prompt.messages.split_last()?;
        let question = last.parts.iter().map(text).collect::<Option<Vec<_>>>()?.concat();
        let may = last.role == Role::User
            && !prompt.messages.iter().any(is_from_outside)
            && !question.trim().is_empty()
            && question.len() <= config.max_question_bytes
            && !prompt.truncated
            && (config.tools || prompt.tools.is_empty())
            && params_allow(config, prompt);
        if !may {
            return None;
        }
        let model = param(prompt, "model")?.to_owned();
        let mut digest = Fields::default();
        digest.add(&config.generation);
        let is_remembered = prompt.params.iter().any(|(name, _)| name == MEMORIES);
        let is_callers = config.scope == "caller" || is_remembered;
        digest.add(if is_callers { &ctx.caller } else { "" });
        let counts = |name: &str| !HARMLESS.contains(&name) && (is_callers || !USERS.contains(&name));
        let mut params: Vec<_> = prompt.params.iter().filter(|(name, _)| counts(name)).collect();
        params.sort();
        digest.list(&params, |digest, (name, json)| {
            digest.add(name).add(json);
        });
        digest.list(&prompt.tools, |digest, tool| {
            digest.add(&tool.name).add(&tool.description).add(&tool.input_schema);
            digest.list(&tool.attrs, |digest, (name, json)| {
                digest.add(name).add(json);
            });
        });
        digest.add(last.name.as_deref().unwrap_or_default());
        let mut is_known = true;
        digest.list(before, |digest, message| {
            digest.add(role(&message.role)).add(message.name.as_deref().unwrap_or_default());
            digest.list(&message.parts, |digest, part| is_known &= add_part(digest, part));
        });
        is_known.then(|| Self { question, context: digest.end(), model })
    }

    /// The digest of all of it: the key of the exact answer.
    pub fn key(&self) -> String {
        let mut digest = Fields::default();
        digest.add(&self.context).add(self.question.trim());
        digest.end()
    }
}

/// The host notes where it has a text from.
pub fn is_from_outside(message: &Message) -> bool {
    message.attrs.iter().any(|(key, _)| key == "source")
}

/// The digest of one text.
pub fn digest(text: &str) -> String {
    let mut digest = Fields::default();
    digest.add(text.trim());
    digest.end()
}

/// A parameter, as JSON.
fn param<'a>(prompt: &'a Prompt, wanted: &str) -> Option<&'a str> {
    prompt.params.iter().find(|(name, _)| name == wanted).map(|(_, json)| json.as_str())
}

fn params_allow(config: &Config, prompt: &Prompt) -> bool {
    let param = |wanted: &str| param(prompt, wanted);
    let temperature = param("temperature").map_or(Some(DEFAULT_TEMPERATURE), |json| json.parse().ok());
    // A host that does not say which model is asked would mix the answers of all of them.
    param("model").is_some()
        && param("form") == Some("\"chat\"")
        && param("logprobs").is_none()
        && matches!(param("n"), None | Some("1"))
        && temperature.is_some_and(|temperature| temperature <= config.max_temperature)
}

fn text(part: &Part) -> Option<&str> {
    match part {
        Part::Text(text) => Some(text),
        _ => None,
    }
}

fn role(role: &Role) -> &str {
    match role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::Other(name) => name,
    }
}

/// False for parts whose content is not all here.
fn add_part(digest: &mut Fields, part: &Part) -> bool {
    match part {
        Part::Text(text) => digest.add("text").add(text),
        Part::Reasoning(text) => digest.add("reasoning").add(text),
        Part::Refusal(text) => digest.add("refusal").add(text),
        Part::ToolCall(call) => digest.add("call").add(&call.id).add(&call.name).add(&call.arguments),
        Part::ToolOutcome(outcome) => digest.add("outcome").add(&outcome.call_id).add(&outcome.content),
        // The host hands over what it has no form for, images, sound and files with it, and may leave out their bytes.
        Part::Image(_) | Part::Audio(_) | Part::File(_) | Part::Opaque { .. } => return false,
    };
    true
}

/// Fields one behind the other, each with its length, so that no two lists of fields read the same.
#[derive(Default)]
struct Fields(Sha256);

impl Fields {
    fn add(&mut self, field: &str) -> &mut Self {
        self.0.update((field.len() as u64).to_le_bytes());
        self.0.update(field.as_bytes());
        self
    }

    fn list<T>(&mut self, items: &[T], mut add: impl FnMut(&mut Self, &T)) {
        self.0.update((items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| add(self, item));
    }

    fn end(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
