//! A router that goes by what a question is about: its vector is compared with those of example questions, and the
//! route of the nearest example names the models, if it is near enough. Read next: [`examples`], [`vectors`].

pub mod examples;
pub mod vectors;

use examples::{Examples, Time, embed};
use serde::Deserialize;
use std::cell::{Cell, RefCell};
use tidegate_plugin_sdk::host::log;
use tidegate_plugin_sdk::host::metrics::count;
use tidegate_plugin_sdk::{
    Candidate, Capability, Context, Decision, Descriptor, Error, Message, Plugin, Role, RouteRequest, Router, Setting,
    each_once, offered,
};
use vectors::Unit;

const MAX_ROUTES: usize = 64;
const MAX_UTTERANCES: usize = 1_024;
const MAX_UTTERANCE_BYTES: usize = 2_000;

/// The settings.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    model: String,
    routes: Vec<Route>,
    threshold: f32,
    default: Vec<String>,
    others: bool,
    text_bytes: usize,
    examples_ttl_s: u64,
}

/// Models for questions of one kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    name: String,
    models: Vec<String>,
    utterances: Vec<String>,
    threshold: Option<f32>,
}

/// The plugin.
#[derive(Debug)]
pub struct SemanticRouter {
    config: Config,
    /// Of all routes, one behind the other.
    utterances: Vec<String>,
    /// The route of each.
    of_route: Vec<usize>,
    /// The vectors of the first ones: of all of them, but until they are made.
    known: RefCell<Vec<Unit>>,
    /// That nothing of what is named was offered, which says nothing of the next request.
    has_warned: Cell<bool>,
}

/// The nearest route.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Nearest {
    route: usize,
    score: f32,
}

impl Plugin for SemanticRouter {
    type Config = Config;

    fn describe() -> Descriptor {
        let score = r#"{"type":"number","minimum":-1,"maximum":1}"#;
        let routes = r#"{"type":"array","minItems":1,"maxItems":64,"items":{"type":"object",
            "required":["name","models","utterances"],"properties":{
            "name":{"type":"string","minLength":1,"maxLength":64},
            "models":{"type":"array","minItems":1,"items":{"type":"string"}},
            "utterances":{"type":"array","minItems":1,"items":{"type":"string","minLength":1}},
            "threshold":{"type":"number","minimum":-1,"maximum":1}}}}"#;
        Descriptor::new("semantic-router", env!("CARGO_PKG_VERSION"), "Chooses a model by what a question is about")
            .setting(Setting::text("model", "embedder", "Alias of the model that makes vectors, in the grant"))
            .setting(Setting::required("routes", routes, "Names, models and example questions"))
            .setting(Setting::new("threshold", score, "0.4", "The least cosine between a question and an example"))
            .setting(Setting::texts(
                "default",
                &[],
                "Models when no route is near, or none of its models is offered; none means the server's order",
            ))
            .setting(Setting::switch("others", true, "Models that are not named follow as fallbacks"))
            .setting(Setting::integer(
                "text_bytes",
                2_000,
                16,
                100_000,
                "Of a longer question so much is compared, half of it from each end",
            ))
            .setting(Setting::integer("examples_ttl_s", 3_600, 1, 2_592_000, "How long the examples' vectors are kept"))
            .needs(Capability::Models, "makes vectors of questions")
            .needs(Capability::Kv, "keeps the examples' vectors")
            .metric("routed", "questions for which a route was near enough")
            .metric("unsure", "questions for which none was")
            .metric("embedded", "texts that the model made vectors of")
    }

    fn configure(config: Config) -> Result<Self, Error> {
        check(&config).map_err(Error::InvalidConfig)?;
        let pairs = config.routes.iter().enumerate();
        let pairs = pairs.flat_map(|(idx, route)| route.utterances.iter().map(move |text| (idx, text.clone())));
        let (of_route, utterances) = pairs.unzip();
        Ok(Self { config, utterances, of_route, known: RefCell::default(), has_warned: Cell::new(false) })
    }
}

fn check(config: &Config) -> Result<(), String> {
    let Config { routes, default, others, threshold, .. } = config;
    let count: usize = routes.iter().map(|route| route.utterances.len()).sum();
    if !(1..=MAX_ROUTES).contains(&routes.len()) || count > MAX_UTTERANCES {
        let problem = format!("{} routes with {count} utterances", routes.len());
        return Err(format!("{problem}; 1 to {MAX_ROUTES} with at most {MAX_UTTERANCES} are supported"));
    }
    if !others && default.is_empty() {
        return Err("`others` is false, so `default` must name a model".into());
    }
    for (idx, Route { name, models, utterances, threshold: own }) in routes.iter().enumerate() {
        let bad = |text: &&String| text.trim().is_empty() || text.len() > MAX_UTTERANCE_BYTES;
        if utterances.is_empty() || utterances.iter().any(|text| bad(&text)) {
            return Err(format!("route `{name}`: an utterance has 1 to {MAX_UTTERANCE_BYTES} bytes, and there is one"));
        }
        if models.is_empty() {
            return Err(format!("route `{name}` names no model"));
        }
        if routes[..idx].iter().any(|other| other.name == *name) {
            return Err(format!("there are two routes `{name}`"));
        }
        let least = own.unwrap_or(*threshold);
        if !(-1.0..=1.0).contains(&least) {
            return Err(format!("the threshold {least} of route `{name}` is no cosine: -1 to 1"));
        }
    }
    Ok(())
}

impl Router for SemanticRouter {
    fn route(&self, ctx: &Context, request: &RouteRequest, candidates: &[Candidate]) -> Result<Decision, Error> {
        if candidates.is_empty() {
            return Err(Error::Unavailable("no model was offered".into()));
        }
        let time = Time::of(ctx);
        let nearest = match question(&request.messages, self.config.text_bytes) {
            Some(question) => Some(self.nearest(question, &time)?),
            None => None,
        };
        let chosen = nearest.filter(|nearest| {
            let own = self.config.routes[nearest.route].threshold;
            nearest.score >= own.unwrap_or(self.config.threshold)
        });
        count(if chosen.is_some() { "routed" } else { "unsure" }, 1);
        let wanted = chosen.map_or(&self.config.default, |nearest| &self.config.routes[nearest.route].models);
        let order = self.order(wanted, candidates, request.prompt_tokens);
        let of = |nearest: Nearest| format!("`{}` ({:.2})", self.config.routes[nearest.route].name, nearest.score);
        let reason = match (chosen, nearest) {
            (Some(chosen), _) => format!("route {}", of(chosen)),
            (None, Some(nearest)) => format!("no route is near; the nearest is {}", of(nearest)),
            (None, None) => "there is no question".into(),
        };
        Ok(Decision { order, reason, attrs: Vec::new() })
    }
}

impl SemanticRouter {
    /// The route with the nearest example; the first of equal ones.
    fn nearest(&self, question: String, time: &Time) -> Result<Nearest, Error> {
        let mut known = self.known.borrow_mut();
        if known.len() == self.utterances.len() {
            let asked = embed(&self.config.model, std::slice::from_ref(&question))?.remove(0);
            if let Some(nearest) = self.compare(&asked, &known) {
                return Ok(nearest);
            }
            // The model behind the alias was changed, and what is known is another one's.
            known.clear();
        }
        let asked = self.begin(question, &mut known, time)?;
        let nearest = self.compare(&asked, &known);
        nearest.ok_or_else(|| Error::Other("the model's vectors have different dimensions each time".into()))
    }

    /// Asks about a question and an example at once: what that says tells whether what was kept is this model's. Then about the
    /// other examples; what there is no time for follows with the next questions, and until then there is no route.
    fn begin(&self, question: String, known: &mut Vec<Unit>, time: &Time) -> Result<Unit, Error> {
        let Config { model, examples_ttl_s, .. } = &self.config;
        let vectors = embed(model, &[question, self.utterances[0].clone()])?;
        let [asked, first] = <[Unit; 2]>::try_from(vectors)
            .map_err(|vectors| Error::Other(format!("{} vectors for 2 texts", vectors.len())))?;
        let examples = Examples { model, utterances: &self.utterances, ttl_ms: examples_ttl_s * 1_000 };
        examples.follow(&first, known, time)?;
        let (have, all) = (known.len(), self.utterances.len());
        if have < all {
            return Err(Error::Unavailable(format!("{have} of {all} examples have vectors; the next questions go on")));
        }
        Ok(asked)
    }

    fn compare(&self, asked: &Unit, examples: &[Unit]) -> Option<Nearest> {
        let mut nearest: Option<Nearest> = None;
        for (example, route) in examples.iter().zip(&self.of_route) {
            let score = asked.cosine(example)?;
            if nearest.is_none_or(|nearest| score > nearest.score) {
                nearest = Some(Nearest { route: *route, score });
            }
        }
        nearest
    }

    /// What is wanted, else `default`, of what was offered; behind it the others, if they may follow or nothing else is there.
    /// What cannot serve now comes behind all that can.
    fn order(&self, wanted: &[String], candidates: &[Candidate], prompt_tokens: u32) -> Vec<String> {
        let Config { default, others, .. } = &self.config;
        let mut order = offered(wanted, default, candidates);
        if order.is_empty() && !others && !self.has_warned.replace(true) {
            log::warn(
                "neither what a route names nor `default` was offered: all others serve, though `others` is false",
            );
        }
        if *others || order.is_empty() {
            order.extend(candidates);
        }
        order.sort_by_key(|candidate| (!candidate.healthy, !candidate.fits(prompt_tokens)));
        each_once(&order)
    }
}

/// The last message of the user that the server did not fetch itself: all its texts, one to a line, within about `most` bytes.
fn question(messages: &[Message], most: usize) -> Option<String> {
    let of_user =
        |message: &&Message| message.role == Role::User && !message.attrs.iter().any(|(key, _)| key == "source");
    let message = messages.iter().rfind(of_user)?;
    let texts: Vec<&str> = message.texts().map(|(_, text)| text.trim()).filter(|text| !text.is_empty()).collect();
    (!texts.is_empty()).then(|| both_ends(texts.join("\n"), most))
}

/// Of a long text half of `most` bytes from each end: what is asked may stand before a document, or behind it.
fn both_ends(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let head = &text[..text.floor_char_boundary(most / 2)];
    let tail = &text[text.ceil_char_boundary(text.len() - most / 2)..];
    format!("{head}\n{tail}")
}

tidegate_plugin_sdk::export!(SemanticRouter: Router);

#[cfg(test)]
mod tests;
