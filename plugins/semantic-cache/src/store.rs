//! Where answers are kept: kv holds them until their time is over, a collection of vectors holds the questions. There
//! are `max_entries` slots; the next answer takes the oldest one's place, so that neither store grows without end. Where a store is
//! full before that, the oldest slots are freed.

use crate::Config;
use crate::asked::Asked;
use serde::{Deserialize, Serialize};
use tidegate_plugin_sdk::Error;
use tidegate_plugin_sdk::host::vectors::{Entry, Hit};
use tidegate_plugin_sdk::host::{kv, vectors};
use tidegate_plugin_sdk::json::quote;

/// Near questions that are looked at: what is behind the first ones whose time is over.
const NEAREST: u32 = 8;

const CONTEXT: &str = "context";
const KEY: &str = "key";

/// What kv holds of one answer.
#[derive(Debug, Deserialize, Serialize)]
struct Kept {
    /// The answer is given for this context only, whatever led here.
    context: String,
    answer: String,
}

fn answer_key(key: &str) -> String {
    format!("answer/{key}")
}

fn slot_key(slot: i64) -> String {
    format!("slot/{slot}")
}

/// The answer under a key, where it is there and of this context.
///
/// # Errors
/// What storage says.
pub fn exact(key: &str, context: &str) -> Result<Option<String>, Error> {
    let Some(bytes) = kv::get(&answer_key(key))? else { return Ok(None) };
    // What cannot be read was written by another version, and is as good as gone.
    let kept = serde_json::from_slice::<Kept>(&bytes).ok();
    Ok(kept.filter(|kept| kept.context == context).map(|kept| kept.answer))
}

/// The answer to the nearest question of the same context, where its cosine is at least `threshold`, with the cosine.
///
/// # Errors
/// What storage says.
pub fn near(config: &Config, asked: &Asked, vector: &[f32]) -> Result<Option<(String, f32)>, Error> {
    let filter = vec![(CONTEXT.to_owned(), quote(&asked.context))];
    let hits = vectors::search(&config.collection, vector, NEAREST, &filter)?;
    for Hit { id, score, payload } in hits {
        if !score.is_finite() || score < config.threshold {
            return Ok(None);
        }
        let key = payload.iter().find(|(name, _)| name == KEY).map(|(_, json)| json.trim_matches('"'));
        let answer = key.map(|key| exact(key, &asked.context)).transpose()?.flatten();
        match answer {
            Some(answer) => return Ok(Some((answer, score))),
            // Its time is over, or its slot went to another answer.
            None => vectors::delete(&config.collection, &[id]).map(|_| ())?,
        }
    }
    Ok(None)
}

/// Of what one call may hand over (a stage's `output_bytes`), with room for what is around it. An answer within
/// `max_answer_bytes` may be twice as long as JSON.
const MOST_BYTES: usize = (1 << 20) - 4096;

/// Oldest slots that are freed at once where storage is full, and how often for one answer: a cache of small answers makes room
/// for a large one over several.
const FREED: usize = 32;
const ROUNDS: usize = 4;
/// Slots that are looked at for that; most may be free by their time.
const LOOKED_AT: usize = 1024;
/// How many answers have come, and up to which one the oldest are gone for want of room.
const NEXT: &str = "next";
const GONE: &str = "gone";

/// Keeps an answer, unless it is too long; without a vector it is found by the same question only. Where storage is full the
/// oldest answers go.
///
/// # Errors
/// What storage says, such as that it is full all the same; then the answer is not kept.
pub fn keep(config: &Config, key: &str, context: &str, vector: Option<Vec<f32>>, answer: &str) -> Result<bool, Error> {
    let kept = Kept { context: context.to_owned(), answer: answer.to_owned() };
    let bytes = serde_json::to_vec(&kept).map_err(|problem| Error::Other(problem.to_string()))?;
    if bytes.len() > MOST_BYTES {
        return Ok(false);
    }
    let ttl = Some(config.ttl_s * 1_000);
    let slot = with_room(config, || kv::increment(NEXT, 1, None))?.rem_euclid(config.max_entries);
    if let Some(old) = kv::get(&slot_key(slot))? {
        kv::delete(&answer_key(&String::from_utf8_lossy(&old)))?;
    }
    with_room(config, || kv::set(&slot_key(slot), key.as_bytes(), ttl))?;
    with_room(config, || kv::set(&answer_key(key), &bytes, ttl))?;
    if let Some(vector) = vector {
        let payload = vec![(CONTEXT.to_owned(), quote(context)), (KEY.to_owned(), quote(key))];
        let entries = [Entry { id: slot_key(slot), vector, payload }];
        with_room(config, || vectors::put(&config.collection, &entries))?;
    }
    Ok(true)
}

/// Puts something, and frees oldest slots where there is no room for it.
fn with_room<T>(config: &Config, put: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 0..ROUNDS {
        match put() {
            Err(Error::Denied(_)) if free_oldest(config)? => {}
            done => return done,
        }
    }
    put()
}

/// Whether there were some to free. The slot of the answer that came last is left alone.
fn free_oldest(config: &Config) -> Result<bool, Error> {
    let number = |key: &str| -> Result<i64, Error> {
        let bytes = kv::get(key)?.unwrap_or_default();
        Ok(std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok()).unwrap_or_default())
    };
    let (last, gone) = (number(NEXT)?, number(GONE)?);
    let first = gone.max(last.saturating_sub(config.max_entries)).saturating_add(1);
    let numbers: Vec<i64> = (first..last).take(LOOKED_AT).collect();
    let ids: Vec<String> = numbers.iter().map(|number| slot_key(number.rem_euclid(config.max_entries))).collect();
    if ids.is_empty() {
        return Ok(false);
    }
    let held = kv::get_many(&ids)?;
    let taken = |(_, key): &(usize, &Option<Vec<u8>>)| key.is_some();
    let after = held.iter().enumerate().filter(taken).map(|(at, _)| at + 1).take(FREED).last().unwrap_or(ids.len());
    for (id, key) in ids.iter().zip(&held).take(after) {
        if let Some(key) = key {
            kv::delete(&answer_key(&String::from_utf8_lossy(key)))?;
            kv::delete(id)?;
        }
    }
    let freed = ids.get(..after).unwrap_or(&ids);
    // Without vectors the collection is not granted, and there is nothing in it.
    if config.semantic {
        vectors::delete(&config.collection, freed)?;
    }
    let through = first.saturating_add(after as i64 - 1);
    kv::increment(GONE, through - gone, None)?;
    Ok(true)
}
