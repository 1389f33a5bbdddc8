//! Vectors by the own engine: texts become tokens, each a job of its own. Those that leave the server have length 1.

use crate::bounds::LengthBounds;
use crate::gate::Kept;
use crate::models::{EngineModel, Model};
use crate::stages::LONG_TEXT_BYTES;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use std::sync::Arc;
use std::time::Duration;
use tidegate_engine::JobStream;
use tidegate_ledger::Tally;
use tidegate_text::{AddSpecial, Past, TextError, TextModel, Within};
use tidegate_turns::{Waiting, in_turn};
use tidegate_types::{Caller, EmbedInput, Embeddings, Fault, Job, JobEvent, Reject, RejectKind, Usage};

/// Of one request at the engine together: enough for a batch, and the others wait where they take nobody's place.
const JOBS_AT_ONCE: usize = 32;
/// How long a request that has vectors, which are counted, waits at a full queue before it tries again.
const PAUSE: Duration = Duration::from_millis(50);
/// How often it does: for half a minute in all.
const MAX_PAUSES: u32 = 600;

/// Texts with what the model's tokenizer adds to them; marks that callers write into them stay text.
pub(crate) async fn encode(
    model: &Model,
    engine: &EngineModel,
    inputs: &[EmbedInput],
    bounds: LengthBounds,
    (caller, kept): (&Caller, Kept),
) -> Result<Vec<Vec<u32>>, Reject> {
    let bytes: usize = inputs.iter().map(|input| if let EmbedInput::Text(text) = input { text.len() } else { 0 }).sum();
    let most_tokens = bounds.tightest_context(model.context_tokens);
    let text = Arc::clone(&engine.text);
    let encoded = if bytes <= LONG_TEXT_BYTES {
        encode_all(&text, inputs, most_tokens, &Waiting::default())
    } else {
        let inputs = inputs.to_vec();
        let work = move |waiting: &Waiting| Ok(encode_all(&text, &inputs, most_tokens, waiting));
        in_turn((caller, bytes), kept, work).await?
    };
    encoded.map_err(|(i, error)| {
        let reject = match error {
            TextError::TooManyTokens { at_least } => {
                let bounded = bounds.check_text(at_least as u64, "at least ").err();
                bounded.unwrap_or_else(|| engine.handle.refuse_longer(at_least))
            }
            error if error.is_callers() => Reject::invalid("input", error.to_string()).code("invalid_value"),
            error => return Reject::internal(Fault::Operator, error.to_string()),
        };
        reject.at(place_of(i, inputs.len()))
    })
}

/// Where the `i`-th of so many texts stands in a request.
pub(super) fn place_of(i: usize, num_texts: usize) -> String {
    if num_texts == 1 { "input".to_owned() } else { format!("input[{i}]") }
}

/// A failure says of which text it is.
fn encode_all(
    text: &TextModel,
    inputs: &[EmbedInput],
    most_tokens: usize,
    waiting: &Waiting,
) -> Result<Vec<Vec<u32>>, (usize, TextError)> {
    let within = Within { most_tokens, past: Past::Stop, gone: &|| waiting.is_over() };
    let encode = |(i, input): (usize, &EmbedInput)| match input {
        EmbedInput::Tokens(tokens) => Ok(tokens.clone()),
        EmbedInput::Text(written) => {
            text.encode_literal_within(written, AddSpecial::Yes, &within).map_err(|error| (i, error))
        }
    };
    inputs.iter().enumerate().map(encode).collect()
}

/// One vector for each prompt, of which `of_each` leaves what is wanted. Dropping the future ends the jobs.
pub(crate) async fn by_engine(
    engine: &EngineModel,
    caller: &Caller,
    prompts: Vec<Vec<u32>>,
    of_each: impl Fn(Vec<f32>) -> Vec<f32>,
    tally: &Tally,
) -> Result<Embeddings, Reject> {
    let num_texts = prompts.len();
    let at = move |reject: Reject, i: usize| match reject.fault {
        Fault::Client => reject.at(place_of(i, num_texts)),
        _ => reject,
    };
    let mut made = Embeddings { vectors: Vec::with_capacity(prompts.len()), usage: Usage::default() };
    let mut waiting = prompts.into_iter().enumerate();
    let (mut next, mut running, mut pauses) = (waiting.next(), FuturesOrdered::new(), 0);
    loop {
        while running.len() < JOBS_AT_ONCE
            && let Some((i, prompt)) = next.take()
        {
            match engine.handle.submit(Job::of(caller, engine.handle.next_job_id(), prompt.clone())) {
                Ok(stream) => {
                    tally.add_input(prompt.len() as u64);
                    running.push_back(async move { one(stream, tally).await.map_err(|reject| at(reject, i)) });
                    next = waiting.next();
                }
                // A queue that is full for a moment shall not cost what was made: the request's own jobs make room.
                Err(reject) if reject.kind == RejectKind::Unavailable && !running.is_empty() => {
                    next = Some((i, prompt));
                    break;
                }
                // Others of the tenant have filled it since.
                Err(reject) if is_full(&reject) && !made.vectors.is_empty() && pauses < MAX_PAUSES => {
                    pauses += 1;
                    tokio::time::sleep(PAUSE).await;
                    next = Some((i, prompt));
                }
                Err(reject) => return Err(at(reject, i)),
            }
        }
        let Some(ended) = running.next().await else { return Ok(made) };
        let (vector, usage) = ended?;
        made.vectors.push(of_each(vector));
        made.usage += usage;
    }
}

fn is_full(reject: &Reject) -> bool {
    reject.code.as_deref() == Some("engine_queue_full")
}

async fn one(mut stream: JobStream, tally: &Tally) -> Result<(Vec<f32>, Usage), Reject> {
    let mut vector = None;
    while let Some(event) = stream.next().await {
        match event {
            JobEvent::Started { cached_tokens } => tally.add_cached(u64::from(cached_tokens)),
            JobEvent::Vector(made) => vector = Some(made),
            JobEvent::Finished { usage, .. } => {
                let none = || Reject::internal(Fault::Engine, "a job for a vector ended without one");
                return Ok((vector.ok_or_else(none)?, usage));
            }
            JobEvent::Failed(reject) => return Err(reject),
            JobEvent::Token(_) => return Err(Reject::internal(Fault::Engine, "a token instead of a vector")),
        }
    }
    Err(Reject::internal(Fault::Engine, "the engine dropped a job without a word"))
}

/// With length 1. The first numbers, where fewer are asked for: of models that were made for it (Matryoshka) they are a
/// vector by themselves. What is left out is held no longer.
pub(super) fn shortened(mut vector: Vec<f32>, dimensions: Option<u32>) -> Vec<f32> {
    if let Some(dimensions) = dimensions {
        vector.truncate(dimensions as usize);
        vector.shrink_to_fit();
    }
    unit(vector)
}

/// The same direction with length 1; one of zeros has none, and stays.
fn unit(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    vector
}

#[cfg(test)]
mod tests;
