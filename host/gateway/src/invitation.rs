//! The last lines of a start: where the server listens, who may ask, and a request to paste, which it answers.

use crate::callers;
use crate::config::Config;
use std::cmp::Reverse;
use std::net::SocketAddr;
use tidegate_api::{ApiKey, Group};
use tidegate_pipeline::chat::ROUTED_MODEL;
use tidegate_pipeline::{Makes, Model, ModelBackend, Pipeline};

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
    config: &Config,
    pipeline: &Pipeline,
) -> anyhow::Result<Vec<String>> {
    let scheme = if tls { "https" } else { "http" };
    let (callers, key) = match config.is_open() {
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

/// What the routers choose, where there are some, or else the first model of the config. Nobody here knows the key that it
/// is pasted with: what more of them may ask goes before that.
fn best_asked<'a>(pipeline: &'a Pipeline, keys: &[ApiKey]) -> Option<(&'a str, &'static Question)> {
    let routed = pipeline.routes().then_some((ROUTED_MODEL, &CHAT));
    let named = pipeline.models().iter().filter_map(|model| Some((model.name.as_str(), question(model)?)));
    let may_ask = |model: &str, question: &Question| {
        let may = |key: &&ApiKey| {
            let reaches = key.endpoints.as_ref().is_none_or(|groups| groups.contains(&question.group));
            reaches && key.caller.scope.allows(model)
        };
        keys.iter().filter(may).count()
    };
    routed.into_iter().chain(named).min_by_key(|&(model, question)| Reverse(may_ask(model, question)))
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
