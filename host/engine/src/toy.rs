//! A toy executor: the next token is a hash of the seed and of the prefix *as read back from its paged cache*; so is a row
//! of a vector.
//!
//! So a wrong block table, a lost or stale block, a piece computed twice or never, all give other tokens, and the
//! right ones are known without a model: [`answer`], [`vector`]. The tests of this crate and of those above it run on it.
//! Told to, it fails in each way in which a device can fail.

use crate::config::{BLOCK_TOKENS, ModelFacts};
use std::collections::{HashSet, VecDeque};
use tidegate_device::fed::with_tokens;
use tidegate_device::{
    Batch, BlockId, DeviceError, DrawQueue, Drawn, Executor, Limits, SampleError, SampleRow, Segment,
};
use tidegate_types::{FinishReason, Job, Pooling, SampledToken};

/// Ways to fail, all off by default.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// A forward fails while a segment holds this token.
    pub poison_forward: Option<u32>,
    /// Drawing fails for a sequence whose prompt holds this token.
    pub poison_sample: Option<u32>,
    /// The rows up to this token and past it have a number that is not finite.
    pub poison_row: Option<u32>,
    /// A forward panics while a segment holds this token.
    pub poison_panic: Option<u32>,
    /// The device is lost at this forward (from 1) and from then on.
    pub lost_at: Option<u64>,
}

/// An executor without a model.
#[derive(Debug)]
pub struct ToyExecutor {
    vocab: usize,
    limits: Limits,
    faults: Faults,
    /// What its vectors are made of, if it makes those.
    pooling: Option<Pooling>,
    cache: Vec<[Option<u32>; BLOCK_TOKENS]>,
    /// The prefix up to each segment of the last forward that wanted logits.
    kept: Vec<Option<Vec<u32>>>,
    /// The rows that each segment of the last forward kept, by pooling; there once the step was collected.
    rows: Vec<Vec<Vec<f32>>>,
    is_collected: bool,
    drawn: DrawQueue,
    /// The last forward, and those whose draws were not collected, oldest first.
    flights: VecDeque<Vec<Flight>>,
    num_forwards: u64,
}

/// A segment of a step that the caller must take to be still running.
#[derive(Debug)]
struct Flight {
    blocks: Vec<BlockId>,
    end: usize,
}

impl Flight {
    /// Whether `next` writes where this one may still read or write, and is not the same sequence going on.
    fn clashes(&self, next: &Segment<'_>) -> Option<BlockId> {
        let first = next.start / BLOCK_TOKENS;
        if next.start == self.end && next.blocks.starts_with(&self.blocks) {
            return None;
        }
        next.blocks[first..].iter().find(|block| self.blocks.contains(block)).copied()
    }
}

/// Facts of a toy model.
pub fn facts(vocab: usize, max_positions: usize) -> ModelFacts {
    ModelFacts {
        name: "toy".into(),
        vocab,
        max_positions,
        fingerprint: "toy".into(),
        kv_layout: "toy".into(),
        kv_bytes_per_token: 1024,
        pooling: None,
    }
}

/// As [`facts`], of a toy model that makes vectors.
pub fn vector_facts(vocab: usize, max_positions: usize, pooling: Pooling) -> ModelFacts {
    ModelFacts { pooling: Some(pooling), ..facts(vocab, max_positions) }
}

/// The token that follows `prefix`.
pub fn next_token(vocab: usize, seed: u64, prefix: &[u32]) -> u32 {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    for token in prefix {
        // The mixing step of splitmix64.
        state = (state ^ u64::from(*token)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
    }
    (state % vocab as u64) as u32
}

/// The same where only the tokens of a mask may come.
pub fn next_allowed(vocab: usize, seed: u64, prefix: &[u32], mask: &[u32]) -> Option<u32> {
    let allows = |id: &u32| mask.get((id / u32::BITS) as usize).is_some_and(|word| word >> (id % u32::BITS) & 1 == 1);
    let allowed: Vec<u32> = (0..vocab as u32).filter(allows).collect();
    let place = next_token(allowed.len().max(1), seed, prefix);
    allowed.get(place as usize).copied()
}

/// What any engine must answer to a job on the toy model.
pub fn answer(vocab: usize, context: usize, job: &Job) -> (Vec<u32>, FinishReason) {
    let mut tokens = job.prompt.clone();
    loop {
        let next = next_token(vocab, job.sampling.seed, &tokens);
        if job.stop_token_ids.contains(&next) {
            return (tokens.split_off(job.prompt.len()), FinishReason::Stop);
        }
        tokens.push(next);
        if tokens.len() - job.prompt.len() >= job.max_tokens as usize || tokens.len() >= context {
            return (tokens.split_off(job.prompt.len()), FinishReason::Length);
        }
    }
}

/// Whole numbers: in a mean they have an exact sum, in whatever order.
fn row(prefix: &[u32]) -> Vec<f32> {
    (0..3).map(|seed| next_token(1 << 16, seed, prefix) as f32).collect()
}

/// What any engine must make of a prompt on the toy model.
pub fn vector(pooling: Pooling, prompt: &[u32]) -> Vec<f32> {
    if pooling == Pooling::LastToken {
        return row(prompt);
    }
    let rows: Vec<_> = (1..=prompt.len()).map(|end| row(&prompt[..end])).collect();
    let mean = |i: usize| rows.iter().map(|row| f64::from(row[i])).sum::<f64>() / rows.len() as f64;
    (0..3).map(|i| mean(i) as f32).collect()
}

impl ToyExecutor {
    /// An executor with an empty cache.
    pub fn new(vocab: usize, limits: Limits, faults: Faults) -> Self {
        let cache = vec![[None; BLOCK_TOKENS]; limits.num_blocks];
        Self {
            vocab,
            limits,
            faults,
            pooling: None,
            cache,
            kept: Vec::new(),
            rows: Vec::new(),
            is_collected: false,
            drawn: DrawQueue::default(),
            flights: VecDeque::new(),
            num_forwards: 0,
        }
    }

    /// The same for a model that makes vectors.
    pub fn with_vectors(self, pooling: Pooling) -> Self {
        Self { pooling: Some(pooling), ..self }
    }

    fn check(&self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        let rows: usize = batch.segments.iter().map(|segment| segment.tokens.len()).sum();
        let (max_rows, max_seqs) = (self.limits.max_batch_tokens, self.limits.max_seqs);
        if rows > max_rows || batch.segments.len() > max_seqs || batch.segments.is_empty() {
            let segments = batch.segments.len();
            return Err(breach(format!("{rows} rows in {segments} segments; limits {max_rows} and {max_seqs}")));
        }
        let mut written = HashSet::new();
        for segment in &batch.segments {
            let end = segment.start + segment.tokens.len();
            if segment.tokens.is_empty() || segment.blocks.len() * BLOCK_TOKENS < end {
                return Err(breach(format!("{} blocks for {end} positions", segment.blocks.len())));
            }
            let own = &segment.blocks[segment.start / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS)];
            if let Some(block) = own.iter().find(|block| !written.insert(**block)) {
                return Err(breach(format!("block {} is written by two sequences", block.0)));
            }
        }
        Ok(())
    }

    /// What a step in flight may still use is nobody else's to write.
    fn check_flights(&self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        let flights = || self.flights.iter().flatten();
        let clash = batch.segments.iter().find_map(|segment| flights().find_map(|flight| flight.clashes(segment)));
        clash.map_or(Ok(()), |block| Err(breach(format!("block {} is in use by a step in flight", block.0))))
    }

    fn fail_as_told(&self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        let holds = |poison: Option<u32>| {
            poison.is_some_and(|poison| batch.segments.iter().any(|segment| segment.tokens.contains(&poison)))
        };
        if self.faults.lost_at.is_some_and(|at| self.num_forwards >= at) {
            return Err(DeviceError::Lost(format!("told to be lost at forward {}", self.num_forwards)));
        }
        if holds(self.faults.poison_forward) {
            return Err(bad("told to fail on this token".into()));
        }
        assert!(!holds(self.faults.poison_panic), "told to panic on this token");
        Ok(())
    }

    fn write(&mut self, segment: &Segment<'_>) {
        for (offset, token) in segment.tokens.iter().enumerate() {
            let (block, slot) = place(segment.blocks, segment.start + offset);
            self.cache[block][slot] = Some(*token);
        }
    }

    /// The prefix up to the segment's end, from the cache alone.
    fn read(&self, segment: &Segment<'_>) -> Result<Vec<u32>, DeviceError> {
        let positions = 0..segment.start + segment.tokens.len();
        let tokens = positions.map(|position| {
            let (block, slot) = place(segment.blocks, position);
            self.cache[block][slot].ok_or_else(|| breach(format!("position {position} was never computed")))
        });
        tokens.collect()
    }

    fn rows_of(&self, segment: &Segment<'_>) -> Result<Vec<Vec<f32>>, DeviceError> {
        if self.pooling.is_none() {
            return Ok(Vec::new());
        }
        let prefix = self.read(segment)?;
        let row = |offset: usize| {
            let prefix = &prefix[..=segment.start + offset];
            let is_sick = self.faults.poison_row.is_some_and(|poison| prefix.contains(&poison));
            if is_sick { vec![0.0, f32::NAN, 0.0] } else { row(prefix) }
        };
        Ok(segment.kept_rows(self.pooling).map(row).collect())
    }
}

impl Executor for ToyExecutor {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.num_forwards += 1;
        let fed = self.drawn.feed(batch)?;
        let resolved = fed.as_ref().map(|tokens| with_tokens(batch, tokens));
        let batch = resolved.as_ref().unwrap_or(batch);
        self.check(batch)?;
        self.check_flights(batch)?;
        self.fail_as_told(batch)?;
        batch.segments.iter().for_each(|segment| self.write(segment));
        let kept = batch.segments.iter().map(|segment| {
            let prefix = self.read(segment)?;
            Ok(segment.want_result.then_some(prefix))
        });
        self.kept = kept.collect::<Result<_, DeviceError>>()?;
        self.rows = batch.segments.iter().map(|segment| self.rows_of(segment)).collect::<Result<_, _>>()?;
        self.is_collected = false;
        let flight = |s: &Segment<'_>| Flight { blocks: s.blocks.to_vec(), end: s.start + s.tokens.len() };
        self.flights.push_back(batch.segments.iter().map(flight).collect());
        Ok(())
    }

    fn sample(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError> {
        let refused = match rows.iter().find(|row| !matches!(self.kept.get(row.segment), Some(Some(_)))) {
            Some(row) => Err(breach(format!("segment {} kept no logits", row.segment))),
            None if self.flights.len() > 2 => Err(breach(format!("{} steps are not collected", self.flights.len()))),
            None => Ok(()),
        };
        if refused.is_err() {
            self.flights.pop_back();
            return refused;
        }
        let Self { drawn, kept, faults, vocab, .. } = self;
        let mut misplaced = None;
        drawn.draw(rows, |row| {
            let prefix = kept[row.segment].as_deref().unwrap_or_default();
            if prefix.len() != row.position || row.prompt.len() + row.output.len() != row.position {
                misplaced = Some(breach(format!("position {} after a prefix of {}", row.position, prefix.len())));
            }
            if faults.poison_sample.is_some_and(|poison| row.prompt.contains(&poison)) {
                return Err(SampleError::NothingAllowed { vocab: *vocab });
            }
            let id = match row.mask {
                None => next_token(*vocab, row.params.seed, prefix),
                Some(mask) => next_allowed(*vocab, row.params.seed, prefix, mask)
                    .ok_or(SampleError::NothingAllowed { vocab: *vocab })?,
            };
            Ok(SampledToken { id, logprob: None, top: Vec::new() })
        });
        misplaced.map_or(Ok(()), Err)
    }

    fn collect(&mut self) -> Result<Vec<Drawn>, DeviceError> {
        self.flights.pop_front();
        self.is_collected = true;
        self.drawn.collect()
    }

    fn logits(&self, _segment: usize) -> Option<&[f32]> {
        None
    }

    fn vector(&self, segment: usize, row: usize) -> Option<&[f32]> {
        self.rows.get(segment).filter(|_| self.is_collected)?.get(row).map(Vec::as_slice)
    }
}

fn place(blocks: &[BlockId], position: usize) -> (usize, usize) {
    (blocks[position / BLOCK_TOKENS].0 as usize, position % BLOCK_TOKENS)
}

fn bad(message: String) -> DeviceError {
    DeviceError::BadBatch(message)
}

/// What the engine never does. A device might compute nonsense from it; here it is a loss, which no test overlooks.
fn breach(message: String) -> DeviceError {
    DeviceError::Lost(format!("breach: {message}"))
}
