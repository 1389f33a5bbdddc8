//! The examples' vectors. They are made on the first question, since models answer nobody in `configure`; after that
//! they are in the instance, and in kv for the tenant's next one.

use crate::vectors::{Unit, from_bytes, to_bytes};
use tidegate_plugin_sdk::Error;
use tidegate_plugin_sdk::host::{kv, log, metrics, models};

/// Texts of one question to a model; the host takes this many.
const MAX_TEXTS: usize = 256;

/// Where the vectors of these examples are kept: other examples or another alias are another key.
pub fn key(model: &str, utterances: &[String]) -> String {
    let texts = utterances.iter().map(String::as_str);
    let bytes = [model].into_iter().chain(texts).flat_map(|text| text.bytes().chain([0xff]));
    // FNV-1a; the texts are the operator's, so nobody looks for collisions.
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("examples/{hash:016x}")
}

/// The least cosine between what one model says of one text twice. Batches round differently; other models say other things.
const SAME: f32 = 0.999;

/// The vectors of the examples: kept ones, else new ones, which are then kept for `ttl_ms`. `first` is what the model says now
/// of the first one: what was kept may be another model's, which was behind the alias before.
///
/// # Errors
/// What the model says. Storage that is out of order costs a question to the model, not the route.
pub fn load(model: &str, utterances: &[String], first: &Unit, ttl_ms: u64) -> Result<Vec<Unit>, Error> {
    let key = key(model, utterances);
    let kept = kv::get(&key).unwrap_or_default();
    let is_its =
        |kept: &Vec<Unit>| kept.first().and_then(|kept| kept.cosine(first)).is_some_and(|cosine| cosine >= SAME);
    if let Some(vectors) = kept.and_then(|bytes| from_bytes(&bytes, utterances.len())).filter(is_its) {
        return Ok(vectors);
    }
    let vectors = embed(model, utterances)?;
    if let Err(problem) = kv::set(&key, &to_bytes(&vectors), Some(ttl_ms)) {
        log::warn(&format!("the examples' vectors are not kept: {problem}"));
    }
    Ok(vectors)
}

/// The directions of texts.
///
/// # Errors
/// What the model says, and vectors that are none or of different dimensions.
pub fn embed(model: &str, texts: &[String]) -> Result<Vec<Unit>, Error> {
    let mut vectors: Vec<Unit> = Vec::with_capacity(texts.len());
    for some in texts.chunks(MAX_TEXTS) {
        metrics::count("embedded", some.len() as u64);
        let answered = models::embed(model, some)?;
        if answered.len() != some.len() {
            return Err(Error::Other(format!("{} vectors for {} texts", answered.len(), some.len())));
        }
        for vector in answered {
            vectors.push(Unit::new(vector)?);
        }
    }
    let dimensions = vectors.first().map_or(0, Unit::dimensions);
    match vectors.iter().find(|unit| unit.dimensions() != dimensions) {
        Some(odd) => Err(Error::Other(format!("vectors of {dimensions} and of {} dimensions", odd.dimensions()))),
        None => Ok(vectors),
    }
}
