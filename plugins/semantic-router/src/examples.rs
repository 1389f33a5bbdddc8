//! The examples' vectors. They are made when questions come, since models answer nobody in `configure`: piece by piece, each of
//! which is kept in kv as it comes, so that the next question goes on where one had no more time, whichever instance it
//! meets. Once all are there they are in the instance. Where nothing may be kept, not even the instance (zero retention), one
//! call makes them all, if it has the time.

use crate::vectors::{Unit, bytes_of, from_bytes, to_bytes};
use tidegate_plugin_sdk::host::{clock, kv, log, metrics, models};
use tidegate_plugin_sdk::{Context, Error};

/// Most texts of a piece. What a call has no time for is lost, so they are few.
const PIECE_TEXTS: usize = 16;

/// Most texts of a question to the model where pieces are not kept: the host's cap.
const BATCH_TEXTS: usize = 256;

// What is handed over to the host has room in `output_bytes`, with what each text takes beside its bytes.
const _: () = assert!(BATCH_TEXTS * (crate::MAX_UTTERANCE_BYTES + size_of::<String>()) < 900 * 1024);

/// Most bytes of a piece in kv: a call ends that hands over more than the stage's `output_bytes` at once, 1 MiB by default.
const PIECE_BYTES: usize = 128 * 1024;

/// The least cosine between what one model says of one text twice. Batches round differently; other models say other things.
const SAME: f32 = 0.999;

/// Of one config.
#[derive(Debug)]
pub struct Examples<'a> {
    /// The alias that is asked.
    pub model: &'a str,
    /// The texts.
    pub utterances: &'a [String],
    /// How long vectors are kept.
    pub ttl_ms: u64,
}

/// The time of one call.
#[derive(Debug)]
pub struct Time {
    began_ms: u64,
    limit_ms: u64,
}

impl Time {
    /// From now on.
    pub fn of(context: &Context) -> Self {
        Self { began_ms: clock::monotonic_ms(), limit_ms: context.deadline_ms.into() }
    }

    /// Whether less than half of it is left: another piece, which takes about as long as one before, might not end in time.
    fn is_short(&self) -> bool {
        2 * clock::monotonic_ms().saturating_sub(self.began_ms) > self.limit_ms
    }

    fn left_ms(&self) -> u64 {
        (self.began_ms + self.limit_ms).saturating_sub(clock::monotonic_ms())
    }
}

/// How fast the model was.
#[derive(Clone, Copy, Debug)]
struct Pace {
    texts: usize,
    took_ms: u64,
}

impl Examples<'_> {
    /// Adds the vectors of the examples behind those of `known`, which are the first ones': kept ones, else new ones, which are
    /// then kept, while there is time; of new ones always a piece. `first` is what the model says now of the first example:
    /// what is known or was kept may be another model's, which was behind the alias before.
    ///
    /// # Errors
    /// What the model says. Storage that is out of order costs a question to the model, not the route.
    pub fn follow(&self, first: &Unit, known: &mut Vec<Unit>, time: &Time) -> Result<(), Error> {
        if !known.first().is_some_and(|known| is_same(known, first)) {
            known.clear();
        }
        let (key, each) = (self.key(), piece_texts(first.dimensions()));
        let mut has_made = false;
        for (idx, texts) in self.utterances.chunks(each).enumerate().skip(known.len() / each) {
            let key = format!("{key}/{idx}");
            if let Some(piece) = stored(&key, texts.len(), first) {
                known.extend(piece);
                continue;
            }
            if has_made && time.is_short() {
                break;
            }
            let (piece, pace) = self.make(texts, first)?;
            let is_kept = self.keep(&key, first, &piece);
            known.extend(piece);
            if !is_kept {
                // The next piece would not be either, and what is refused is said once for a question.
                return self.follow_unkept(first, known, time, pace);
            }
            has_made = true;
        }
        Ok(())
    }

    /// Goes on where pieces are not kept. An instance that lives on has them in memory; under zero retention it does not, and
    /// what is not done within the call is lost. So this goes on as long as as many texts again have time, and twice as many at
    /// once where these have, too: with more a call might end whose instance would have lived on.
    fn follow_unkept(&self, first: &Unit, known: &mut Vec<Unit>, time: &Time, mut pace: Pace) -> Result<(), Error> {
        while known.len() < self.utterances.len() && time.left_ms() >= pace.took_ms {
            let has_time = time.left_ms() >= 2 * pace.took_ms;
            // Doubled, it stays a multiple of a piece, at whose borders the next question goes on.
            let texts = if has_time && 2 * pace.texts <= BATCH_TEXTS { 2 * pace.texts } else { pace.texts };
            let rest = &self.utterances[known.len()..];
            let (batch, made) = self.make(&rest[..texts.min(rest.len())], first)?;
            known.extend(batch);
            pace = made;
        }
        Ok(())
    }

    fn make(&self, texts: &[String], first: &Unit) -> Result<(Vec<Unit>, Pace), Error> {
        let began_ms = clock::monotonic_ms();
        let piece = embed(self.model, texts)?;
        let took_ms = clock::monotonic_ms().saturating_sub(began_ms);
        let (was, is) = (first.dimensions(), piece.first().map_or(0, Unit::dimensions));
        if was != is {
            return Err(Error::Other(format!("vectors of {was} and of {is} dimensions: different ones each time")));
        }
        Ok((piece, Pace { texts: texts.len(), took_ms }))
    }

    /// Keeps a piece, behind the first example's vector: which model made it can be told by that.
    fn keep(&self, key: &str, first: &Unit, piece: &[Unit]) -> bool {
        let bytes = to_bytes([first].into_iter().chain(piece));
        let kept = kv::set(key, &bytes, Some(self.ttl_ms));
        if let Err(problem) = &kept {
            log::warn(&format!("some of the examples' vectors are not kept: {problem}"));
        }
        kept.is_ok()
    }

    /// Where the vectors of these examples are kept: other examples or another alias are another key.
    fn key(&self) -> String {
        let texts = self.utterances.iter().map(String::as_str);
        let bytes = [self.model].into_iter().chain(texts).flat_map(|text| text.bytes().chain([0xff]));
        // FNV-1a; the texts are the operator's, so nobody looks for collisions.
        let hash = bytes
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        format!("examples/{hash:016x}")
    }
}

/// How many texts a piece has: with the first example's, their vectors are within a piece's bytes.
fn piece_texts(dimensions: usize) -> usize {
    let fitting = (1..=PIECE_TEXTS).take_while(|texts| bytes_of(texts + 1, dimensions) <= PIECE_BYTES);
    fitting.last().unwrap_or(1)
}

fn stored(key: &str, count: usize, first: &Unit) -> Option<Vec<Unit>> {
    let bytes = kv::get(key).unwrap_or_default()?;
    let mut vectors = from_bytes(&bytes, count + 1)?;
    is_same(&vectors.remove(0), first).then_some(vectors)
}

fn is_same(a: &Unit, b: &Unit) -> bool {
    a.cosine(b).is_some_and(|cosine| cosine >= SAME)
}

/// The directions of texts: no more than one question to a model may have.
///
/// # Errors
/// What the model says, and vectors that are none or of different dimensions.
pub fn embed(model: &str, texts: &[String]) -> Result<Vec<Unit>, Error> {
    metrics::count("embedded", texts.len() as u64);
    let answered = models::embed(model, texts)?;
    if answered.len() != texts.len() {
        return Err(Error::Other(format!("{} vectors for {} texts", answered.len(), texts.len())));
    }
    let vectors = answered.into_iter().map(Unit::new).collect::<Result<Vec<Unit>, Error>>()?;
    let dimensions = vectors.first().map_or(0, Unit::dimensions);
    match vectors.iter().find(|unit| unit.dimensions() != dimensions) {
        Some(odd) => Err(Error::Other(format!("vectors of {dimensions} and of {} dimensions", odd.dimensions()))),
        None => Ok(vectors),
    }
}
