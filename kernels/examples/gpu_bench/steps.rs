//! Times of single steps, through the executor as the engine calls it: decoding steps are queued one ahead and fed with
//! the tokens of the one before; a prompt is timed from its layout to its token.

use crate::{Failure, open, row};
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_device::{Backend, Batch, BlockId, DeviceError, Executor, Limits, SampleRow, Segment};
use tidegate_kernels::blas::Algorithms;
use tidegate_model::Model;
use tidegate_types::SamplingParams;

const BLOCK: usize = 16;
const WARM_UP: usize = 3;
const DECODE_STEPS: usize = 24;
const PREFILLS: usize = 5;
/// Tokens of a step while the cache is filled; nothing that is measured.
const CHUNK: usize = 8192;

/// What to measure.
pub struct Work {
    pub batches: Vec<usize>,
    pub context: usize,
    pub prompts: Vec<usize>,
}

impl Work {
    /// The positions that a sequence of a decoding batch reaches.
    fn reach(&self) -> usize {
        self.context + WARM_UP + DECODE_STEPS
    }

    fn limits(&self, seqs: usize) -> Limits {
        let longest = self.prompts.iter().copied().max().unwrap_or(0);
        let tokens = (seqs * self.reach().div_ceil(BLOCK)).max(longest.div_ceil(BLOCK));
        Limits {
            num_blocks: tokens,
            block_tokens: BLOCK,
            max_batch_tokens: longest.max(CHUNK.min(seqs * self.context)).max(seqs),
            max_seqs: seqs,
        }
    }
}

/// Prints a row for each batch and each prompt. Where memory does not hold the largest batch, smaller ones are tried.
pub fn measure(folder: &Path, name: &str, work: &Work, algorithms: Algorithms) -> Result<(), Failure> {
    let (model, backend) = (Model::open(folder)?, open(algorithms)?);
    let (decode, prefill) = match algorithms {
        Algorithms::Best => ("decode", "prefill"),
        Algorithms::Fixed => ("decode, deterministic", "prefill, deterministic"),
    };
    let mut batches = work.batches.clone();
    batches.sort_unstable();
    let mut executor = loop {
        let Some(&seqs) = batches.last() else { return Err("the device's memory holds no batch at all".into()) };
        match backend.load(model.program.clone(), &*model.weights, work.limits(seqs)) {
            Ok(executor) => break executor,
            Err(why @ DeviceError::OutOfMemory { .. }) => {
                row::skipped(decode, name, seqs, work.context, &why.to_string());
                batches.pop();
            }
            Err(why) => return Err(why.into()),
        }
    };
    let vocab = model.program.dims.vocab;
    for seqs in batches {
        let mut sequences = Sequences::new(seqs, work.reach(), vocab);
        sequences.fill(&mut *executor, work.context, work.limits(seqs).max_batch_tokens)?;
        row::times(decode, name, seqs, work.context, sequences.decode(&mut *executor)?);
    }
    for &tokens in &work.prompts {
        let sequence = Sequences::new(1, tokens, vocab);
        let mut times = Vec::new();
        for turn in 0..PREFILLS + 1 {
            let start = Instant::now();
            sequence.queue(&mut *executor, 0, tokens, 0..1, Draw::Known)?;
            collect(&mut *executor)?;
            if turn > 0 {
                times.push(start.elapsed());
            }
        }
        row::times(prefill, name, tokens, 0, times);
    }
    Ok(())
}

/// What follows a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draw {
    Nothing,
    /// Its tokens are ours.
    Known,
    /// Its tokens are those of the last draw.
    Fed,
}

/// Random tokens in blocks of their own.
struct Sequences {
    tokens: Vec<Vec<u32>>,
    blocks: Vec<Vec<BlockId>>,
    len: usize,
}

impl Sequences {
    fn new(count: usize, most: usize, vocab: usize) -> Self {
        let each = most.div_ceil(BLOCK);
        let token = |s: usize, i: usize| ((s * 7919 + i * 104_729 + 1) % vocab) as u32;
        // Neighbours in a sequence do not lie side by side in the cache.
        let block = |s: usize, i: usize| BlockId((i * count + s) as u32);
        Self {
            tokens: (0..count).map(|s| (0..most).map(|i| token(s, i)).collect()).collect(),
            blocks: (0..count).map(|s| (0..each).map(|i| block(s, i)).collect()).collect(),
            len: 0,
        }
    }

    /// Queues `tokens` tokens of each of `which` from `start` on, and the draw behind them where there is one.
    fn queue(
        &self,
        executor: &mut dyn Executor,
        start: usize,
        tokens: usize,
        which: std::ops::Range<usize>,
        draw: Draw,
    ) -> Result<(), Failure> {
        let known = if draw == Draw::Fed { 0 } else { tokens };
        let segment = |(row, s): (usize, usize)| Segment {
            tokens: &self.tokens[s][start..start + known],
            fed: (draw == Draw::Fed).then_some(row),
            start,
            blocks: &self.blocks[s],
            want_result: draw != Draw::Nothing,
        };
        executor.forward(&Batch { segments: which.clone().enumerate().map(segment).collect() })?;
        if draw != Draw::Nothing {
            let params = SamplingParams::greedy();
            let position = start + tokens;
            let row = |segment| SampleRow { segment, params: &params, position, prompt: &[], output: &[], mask: None };
            executor.sample(&(0..which.len()).map(row).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Puts `context` tokens of each into the cache, as many sequences at a time as a batch takes.
    fn fill(&mut self, executor: &mut dyn Executor, context: usize, most: usize) -> Result<(), Failure> {
        let (count, piece) = (self.tokens.len(), context.min(most));
        for start in (0..context).step_by(piece) {
            let tokens = piece.min(context - start);
            let at_once = (most / tokens).max(1);
            for first in (0..count).step_by(at_once) {
                self.queue(executor, start, tokens, first..count.min(first + at_once), Draw::Nothing)?;
            }
        }
        self.len = context;
        Ok(())
    }

    /// One token of each, again and again, each step queued while the one before it is computed.
    fn decode(&mut self, executor: &mut dyn Executor) -> Result<Vec<Duration>, Failure> {
        let count = self.tokens.len();
        self.queue(executor, self.len, 1, 0..count, Draw::Known)?;
        let mut times = Vec::new();
        let mut last = Instant::now();
        for turn in 1..WARM_UP + DECODE_STEPS {
            self.queue(executor, self.len + turn, 1, 0..count, Draw::Fed)?;
            collect(executor)?;
            let now = Instant::now();
            if turn > WARM_UP {
                times.push(now - last);
            }
            last = now;
        }
        collect(executor)?;
        Ok(times)
    }
}

/// Waits for the oldest draw.
fn collect(executor: &mut dyn Executor) -> Result<(), Failure> {
    executor.collect()?.into_iter().find_map(Result::err).map_or(Ok(()), |error| Err(error.into()))
}
