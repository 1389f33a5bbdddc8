//! The last lines of a start: where the server listens, who may ask, and a request to paste, which it answers.

use crate::callers;
use crate::config::Config;
use std::net::SocketAddr;
use std::time::SystemTime;
use tidegate_api::{ApiKey, Group};
use tidegate_pipeline::{Makes, Model, ModelBackend, Pipeline};
use tidegate_types::{Act, ROUTED_MODEL, default_model};

/// What a model is asked by hand.
struct Question {
    /// The endpoints that it needs a key for.
    group: Group,
    path: &'static str,
    /// The members of the body beside the model.
    members: &'static str,
}

static CHAT: Question = Question {
    group: Group::Chat,
    path: "chat/completions",
    members: r#""messages":[{"role":"user","content":"What is Tidegate?"}]"#,
};
static COMPLETION: Question =
    Question { group: Group::Completions, path: "completions", members: r#""prompt":"The tide""# };
static VECTORS: Question =
    Question { group: Group::Embeddings, path: "embeddings", members: r#""input":"What is Tidegate?""# };

pub(crate) fn invitation(
    addr: SocketAddr,
    tls: bool,
    (config, is_local_only): (&Config, bool),
    pipeline: &Pipeline,
) -> anyhow::Result<Vec<String>> {
    let scheme = if tls { "https" } else { "http" };
    let (callers, key) = match is_local_only {
        true => ("no keys: this machine only", ""),
        false => ("keys needed", " -H \"authorization: Bearer $TIDEGATE_API_KEY\""),
    };
    let request = |(model, Question { path, members, .. }): (&str, &Question)| {
        format!(
            "try       curl {scheme}://{addr}/v1/{path} -H 'content-type: application/json'{key} \
             -d '{{\"model\":\"{model}\",{members}}}'"
        )
    };
    let listening = format!("listening {scheme}://{addr} ({callers})");
    let asked = best_asked(pipeline, &callers::keys(config)?);
    Ok(std::iter::once(listening).chain(asked.map(request)).collect())
}

/// What somebody gets who names no model, among those that the most keys may ask: nobody here knows the key that it is pasted
/// with. Where none of these answers chats it is the first of the config.
fn best_asked<'a>(pipeline: &'a Pipeline, keys: &[ApiKey]) -> Option<(&'a str, &'static Question)> {
    let now = SystemTime::now();
    let routed = pipeline.routes().then_some((ROUTED_MODEL, &CHAT));
    let named = pipeline.models().iter().filter_map(|model| Some((model.name.as_str(), question(model)?)));
    let counted: Vec<_> = named.chain(routed).map(|asked| (asked, num_may_ask(keys, asked, now))).collect();
    let most = counted.iter().map(|(_, keys)| *keys).max()?;
    let best = || counted.iter().filter(|(_, keys)| *keys == most).map(|(asked, _)| *asked);
    let chats = |question: &Question| question.group == Group::Chat;
    let default = default_model(best().map(|(model, question)| (model, chats(question))));
    default.map(|model| (model, &CHAT)).or_else(|| best().next())
}

/// How many keys may send a question to a model.
fn num_may_ask(keys: &[ApiKey], (model, question): (&str, &Question), now: SystemTime) -> usize {
    let may = |key: &&ApiKey| {
        let lasts = key.expires.is_none_or(|end| end > now);
        let reaches = key.endpoints.as_ref().is_none_or(|groups| groups.contains(&question.group));
        lasts && reaches && key.caller.may(Act::Ask) && key.caller.scope.allows(model)
    };
    keys.iter().filter(may).count()
}

/// `None` for what gives labels: plugins alone ask it.
fn question(model: &Model) -> Option<&'static Question> {
    let ModelBackend::Engine(engine) = &model.backend else { return Some(&CHAT) };
    match engine.makes {
        Makes::Text if engine.text.has_template() => Some(&CHAT),
        Makes::Text => Some(&COMPLETION),
        Makes::Vectors { .. } => Some(&VECTORS),
        Makes::Labels(_) => None,
    }
}
