//! Vectors of texts by one model, wherever it runs: of callers ([`Pipeline::embed`](crate::Pipeline::embed)) and of plugins
//! (`ask.rs`).

use super::jobs::{by_engine, encode, place_of, shortened};
use crate::bounds::LengthBounds;
use crate::context::RequestContext;
use crate::estimate::BYTES_PER_TOKEN;
use crate::gate::Kept;
use crate::labels::classifier;
use crate::models::{EngineModel, Makes, Model, ModelBackend};
use tidegate_ledger::Tally;
use tidegate_types::{Caller, EmbedInput, EmbedRequest, Embeddings, Reject, Usage};
use tidegate_upstream::Attempts;

/// What is to be made of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Vectors,
    /// With scores; see `labels.rs`.
    Labels,
}

/// What a model is to read for a request.
pub(crate) struct Reading {
    /// Of the own engine: the texts as tokens.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// How many tokens that is, or about: other servers count for themselves.
    pub(crate) num_tokens: u64,
}

impl Reading {
    /// Refuses what the model cannot do, and texts that it cannot read or that are longer than `bounds`, before any is
    /// computed. `estimate` is for a model that runs
    /// elsewhere, `kept` what the request of `caller` holds.
    pub(crate) async fn of(
        model: &Model,
        asked: &EmbedRequest,
        wanted: Wanted,
        bounds: &LengthBounds,
        caller: &Caller,
        (estimate, kept): (u64, Kept),
    ) -> Result<Self, Reject> {
        match &model.backend {
            ModelBackend::Engine(engine) => {
                let padded = match wanted {
                    Wanted::Vectors => check_dimensions(model, engine, asked.dimensions).map(|()| None)?,
                    Wanted::Labels => Some(classifier(model, engine)?),
                };
                let mut prompts = encode(model, engine, &asked.inputs, *bounds, (caller, kept)).await?;
                if let Some(classifier) = padded {
                    prompts.iter_mut().for_each(|prompt| prompt.truncate(classifier.without_padding(prompt).len()));
                }
                let is_read = |prompt: &[u32]| {
                    bounds.check_text(prompt.len() as u64, "").and_then(|()| engine.handle.check_for_vector(prompt))
                };
                let is_read = |(i, prompt): (usize, &Vec<u32>)| {
                    is_read(prompt).map_err(|reject| reject.at(place_of(i, prompts.len())))
                };
                prompts.iter().enumerate().try_for_each(is_read)?;
                let num_tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
                Ok(Self { prompts, num_tokens })
            }
            ModelBackend::Upstream(_) => {
                asked.inputs.iter().try_for_each(|input| bounds.check_text(about(input), "about "))?;
                Ok(Self { prompts: Vec::new(), num_tokens: estimate })
            }
        }
    }
}

/// One vector for each text, as the work of the request's caller. What that costs is counted in `tally`.
pub(crate) async fn vectors(
    model: &Model,
    asked: &EmbedRequest,
    reading: Reading,
    cx: &RequestContext,
    (tally, attempts): (&Tally, &Attempts),
) -> Result<Embeddings, Reject> {
    let Reading { prompts, num_tokens } = reading;
    match &model.backend {
        ModelBackend::Engine(engine) => {
            let of_each = |vector| shortened(vector, asked.dimensions);
            by_engine(engine, &cx.caller, prompts, of_each, tally).await
        }
        ModelBackend::Upstream(replicas) => {
            let mut bill = Bill { tally, attempts, num_tokens };
            let (vectors, counted) = Box::pin(replicas.vectors(asked, &cx.sending(), attempts)).await?;
            bill.num_tokens = counted.unwrap_or(num_tokens);
            check_made(model, &vectors, asked.dimensions)?;
            Ok(Embeddings { vectors, usage: Usage { input_tokens: bill.num_tokens, ..Usage::default() } })
        }
    }
}

/// Texts or a prompt that a server is asked about. It may bill them whether or not its answer is waited for or can be read: so they
/// are counted when this is dropped, unless it has refused them.
pub(crate) struct Bill<'a> {
    pub(crate) tally: &'a Tally,
    pub(crate) attempts: &'a Attempts,
    /// The estimate, until the server says how many there were.
    pub(crate) num_tokens: u64,
}

impl Bill<'_> {
    /// Ends it; it counts nothing where somebody else does.
    pub(crate) fn end(mut self, others_count: bool) {
        if others_count {
            self.num_tokens = 0;
        }
    }
}

impl Drop for Bill<'_> {
    fn drop(&mut self) {
        if self.attempts.may_be_billed() {
            self.tally.add_input(self.num_tokens);
        }
    }
}

fn check_dimensions(model: &Model, engine: &EngineModel, asked: Option<u32>) -> Result<(), Reject> {
    let name = &model.name;
    let no_vectors = |what: &str| {
        let message = format!("model `{name}` {what} no vectors; name one that has the capability `embeddings`");
        Err(Reject::invalid("model", message).code("unsupported_model"))
    };
    let most = match &engine.makes {
        Makes::Vectors { dimensions } => *dimensions,
        Makes::Labels(_) => return no_vectors("gives labels to plugins and"),
        Makes::Text => return no_vectors("makes"),
    };
    match asked.filter(|asked| *asked > most) {
        None => Ok(()),
        Some(asked) => {
            let message = format!("`dimensions` is {asked}; the vectors of model `{name}` have {most}");
            Err(Reject::invalid("dimensions", message).code("invalid_value"))
        }
    }
}

/// A server that passes `dimensions` over would give what was not asked for.
fn check_made(model: &Model, vectors: &[Vec<f32>], asked: Option<u32>) -> Result<(), Reject> {
    let Some(asked) = asked else { return Ok(()) };
    match vectors.iter().map(Vec::len).find(|made| *made != asked as usize) {
        None => Ok(()),
        Some(made) => {
            let name = &model.name;
            let message =
                format!("the server of model `{name}` makes vectors of {made} numbers; leave `dimensions` out");
            Err(Reject::invalid("dimensions", message).code("unsupported_parameter"))
        }
    }
}

/// About how many tokens it has.
fn about(input: &EmbedInput) -> u64 {
    match input {
        EmbedInput::Text(text) => text.len().div_ceil(BYTES_PER_TOKEN) as u64,
        EmbedInput::Tokens(tokens) => tokens.len() as u64,
    }
}
