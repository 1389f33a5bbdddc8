//! A loaded model: one stream, one arena, and the steps of the program in order.
//!
//! `forward` and `sample` only queue; the host waits in `collect`. Nothing is allocated on
//! the device after `new`. Read next: `executor/steps.rs`, what a node becomes; `executor/inputs.rs`, what a batch
//! uploads; `executor/sampling.rs` and `executor/vectors.rs`, what comes back.

mod graphs;
mod inputs;
mod memory;
mod sampling;
mod steps;
mod vectors;
mod weights;

use crate::backend::CudaOptions;
use crate::blas::{Algorithms, Bench, Blas, Matrix, Product};
use crate::driver::{Arena, Carver, Context, Kernels, Pinned, Stream};
use crate::error::{CudaError, within_step};
use crate::ops::attend::Phase;
use crate::ops::{BLOCK_TOKENS, OpError};
use graphs::Graphs;
use inputs::{Extent, Inputs};
use memory::Memory;
use sampling::Sampling;
use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;
use steps::{Model, Step};
use tidegate_device::check::{check_batch, check_fed, check_program, check_rows};
use tidegate_device::{Batch, DeviceError, Drawn, Executor, Limits, Program, SampleRow, StepLimits, WeightSource};
use vectors::Vectors;

/// The executor. Fields go in the order of their declaration: the context last, memory before it.
pub(crate) struct CudaExecutor {
    graphs: Option<Graphs>,
    model: Model,
    inputs: Inputs,
    sampling: Sampling,
    /// Of a program that makes them.
    vectors: Option<Vectors>,
    blas: Blas,
    memory: Memory,
    program: Arc<Program>,
    limits: Limits,
    /// Of each segment of the last forward: its rows of the logits or vectors, and the drawn row that it was fed.
    kept: Vec<(Range<usize>, Option<usize>)>,
    num_kept: usize,
    /// The logits that were kept, on the host, once somebody asked.
    read_back: OnceCell<Vec<f32>>,
    stream: Stream,
    _arena: Arena,
    context: Arc<Context>,
}

/// Whether there is a launcher for every node.
pub(crate) fn check(kernels: &Arc<Kernels>, program: &Program) -> Result<(), DeviceError> {
    check_program(program)?;
    let least = Limits { num_blocks: 1, block_tokens: BLOCK_TOKENS, max_batch_tokens: 1, max_seqs: 1 };
    let memory = Memory::carve(&mut Carver::measuring(), program, &least)?;
    memory.map_or(Ok(()), |memory| Model::new(kernels, program, &memory).map(drop))
}

/// Bytes of everything but the cache, for a cache that holds the longest sequence.
pub(crate) fn bytes_beside_cache(program: &Program, limits: &StepLimits) -> Result<usize, DeviceError> {
    check_program(program)?;
    let num_blocks = program.dims.max_positions.div_ceil(BLOCK_TOKENS);
    let StepLimits { max_batch_tokens, max_seqs } = *limits;
    let limits = Limits { num_blocks, block_tokens: BLOCK_TOKENS, max_batch_tokens, max_seqs };
    let mut measure = Carver::measuring();
    Memory::carve(&mut measure, program, &limits)?;
    let cache = program.kv_bytes_per_token(size_of::<half::bf16>()) * num_blocks * BLOCK_TOKENS;
    Ok(measure.used().saturating_sub(cache))
}

impl CudaExecutor {
    /// Allocates everything and uploads the weights.
    pub(crate) fn new(
        context: &Arc<Context>,
        kernels: &Arc<Kernels>,
        options: &CudaOptions,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        limits: Limits,
    ) -> Result<Self, DeviceError> {
        check_program(&program)?;
        if limits.block_tokens != BLOCK_TOKENS {
            let what = format!("blocks of {} tokens; it has blocks of {BLOCK_TOKENS}", limits.block_tokens);
            return Err(DeviceError::Unsupported { backend: "cuda", what });
        }
        let carve = |carver: &mut Carver| Memory::carve(carver, &program, &limits);
        let mut measure = Carver::measuring();
        let too_much = || DeviceError::OutOfMemory { what: "weights, cache and activations", bytes: usize::MAX };
        carve(&mut measure)?.ok_or_else(too_much)?;
        let bytes = measure.used();
        let arena =
            Arena::new(context, bytes).map_err(|e| e.while_allocating("weights, cache and activations", bytes))?;
        let memory = carve(&mut arena.carver())?.ok_or_else(too_much)?;
        let stream = Stream::new(context)?;
        weights::upload(context, &stream, &program, weights, &memory)?;
        stream.zero(memory.sampling.counts)?;
        let model = Model::new(kernels, &program, &memory)?;
        let blas = products(context, &stream, options, &model, &memory, limits.max_batch_tokens)?;
        Ok(Self {
            model,
            inputs: Inputs::new(context, &program, &limits)?,
            sampling: Sampling::new(context, kernels, &program, &limits)?,
            vectors: program.pooling().map(|_| Vectors::new(context, memory.normed)).transpose()?,
            graphs: if options.graphs { Some(Graphs::new(context, &limits)?) } else { None },
            blas,
            memory,
            program,
            kept: Vec::with_capacity(limits.max_seqs),
            num_kept: 0,
            read_back: OnceCell::new(),
            limits,
            stream,
            _arena: arena,
            context: Arc::clone(context),
        })
    }

    /// Queues the step: by one call where it was recorded, or is worth recording.
    fn run(&mut self) -> Result<(), OpError> {
        let Self { graphs, model, blas, memory, inputs, stream, .. } = self;
        let eager = inputs.extent(memory.heads().keys);
        match (graphs, inputs.bucket()) {
            (Some(graphs), Some(bucket)) => {
                let extent = graphs.extent(bucket, memory);
                graphs.play(bucket, stream, || queue(model, blas, memory, stream, &extent))
            }
            _ => queue(model, blas, memory, stream, &eager),
        }
    }

    /// The logits that were kept, once all that was queued is done.
    fn read_logits(&self) -> Result<Vec<f32>, CudaError> {
        self.context.bind()?;
        let len = self.num_kept * self.program.dims.vocab * size_of::<f32>();
        let mut staging = Pinned::new(&self.context, len)?;
        self.stream.download(&mut staging, self.memory.sampling.logits, len)?;
        self.stream.synchronize()?;
        let (numbers, _) = staging.bytes()[..len].as_chunks::<4>();
        Ok(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}

/// cuBLASLt with the algorithms for this model's products.
fn products(
    context: &Context,
    stream: &Stream,
    options: &CudaOptions,
    model: &Model,
    memory: &Memory,
    max_rows: usize,
) -> Result<Blas, CudaError> {
    let mut blas = Blas::new(memory.workspace, max_rows, options.algorithms)?;
    let (Algorithms::Best, [input, out]) = (options.algorithms, memory.widest()) else { return Ok(blas) };
    let (matrices, device) = (model.matrices(), context.name()?);
    let (logits, folder) = (memory.sampling.logits, options.cache.as_deref());
    let bench = Bench { input, out, logits, matrices: &matrices, device: &device, folder };
    blas.tune(stream, &bench)?;
    Ok(blas)
}

/// Queues every step of the model.
fn queue(model: &Model, blas: &mut Blas, memory: &Memory, stream: &Stream, extent: &Extent) -> Result<(), OpError> {
    let (rows, places) = (extent.rows, memory.places());
    for step in &model.steps {
        match step {
            Step::Embed { op, table, out } => {
                op.launch(stream, rows, *table, (memory.inputs.tokens, memory.sampling.drawn), *out)?;
            }
            Step::Norm { op, buffers, eps } => op.launch(stream, rows, buffers, *eps)?,
            Step::Linear { matrix, input, out } => {
                blas.multiply(stream, matrix, rows, *input, Product::Bf16(*out))?;
            }
            Step::Rope { op, qkv, norm, layer } => {
                op.launch(stream, rows, *qkv, norm.as_ref(), (&places, &memory.layer(*layer)))?;
            }
            Step::Attend { op, qkv, out, layer, attention } => {
                for phase in [Phase::Split, Phase::Combine, Phase::Prefill] {
                    let work = (phase, &memory.inputs.work(phase, extent));
                    let cache = (&memory.layer(*layer), &memory.attend());
                    op.launch(stream, work, (*qkv, *out), cache, attention)?;
                }
            }
            Step::Gate { op, gate_up, out } => op.launch(stream, rows, *gate_up, *out)?,
            Step::Logits { op, buffers, eps, head } => {
                op.launch_gather(stream, (memory.inputs.wanted, extent.wanted), buffers, *eps)?;
                logits(blas, stream, head, extent.wanted, memory)?;
            }
            Step::Vectors { op, buffers, eps } => {
                op.launch_gather(stream, (memory.inputs.wanted, extent.wanted), buffers, *eps)?;
            }
        }
    }
    Ok(())
}

fn logits(blas: &mut Blas, stream: &Stream, head: &Matrix, rows: usize, memory: &Memory) -> Result<(), CudaError> {
    blas.multiply(stream, head, rows, memory.normed, Product::F32(memory.sampling.logits))
}

impl CudaExecutor {
    fn queue_forward(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.vectors.as_mut().map_or(Ok(()), Vectors::begin)?;
        self.kept.clear();
        self.num_kept = 0;
        self.read_back.take();
        check_batch(batch, &self.program.dims, &self.limits)?;
        check_fed(batch, self.sampling.num_drawn())?;
        self.context.bind()?;
        let graphs = self.graphs.as_ref();
        self.inputs.upload(&self.stream, &self.memory, batch, |rows| graphs.and_then(|g| g.bucket(rows)))?;
        self.run()?;
        for segment in &batch.segments {
            let first = self.num_kept;
            self.num_kept += segment.kept_rows(self.program.pooling()).len();
            self.kept.push((first..self.num_kept, segment.fed));
        }
        Ok(())
    }

    fn queue_draws(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError> {
        self.context.bind()?;
        let (kept, has_logits) = (&self.kept, self.program.pooling().is_none());
        check_rows(rows, |segment| has_logits && kept.get(segment).is_some_and(|(rows, _)| !rows.is_empty()))?;
        if let Some(vectors) = &mut self.vectors {
            // Before the mark that `collect` waits for.
            vectors.queue(&self.stream, self.memory.normed, self.num_kept * self.program.dims.hidden)?;
        }
        let place = |segment: usize| kept.get(segment).map_or((0, None), |(rows, fed)| (rows.start, *fed));
        self.sampling.queue(&self.stream, &self.memory.sampling, rows, place)
    }

    fn wait(&mut self) -> Result<Vec<Drawn>, DeviceError> {
        self.context.bind()?;
        let drawn = self.sampling.collect()?;
        self.vectors.iter_mut().for_each(Vectors::take);
        Ok(drawn)
    }

    /// Of a step that is lost nothing is waited for.
    fn end<T>(&mut self, done: Result<T, DeviceError>) -> Result<T, DeviceError> {
        let done = done.map_err(within_step);
        if let Err(DeviceError::Lost(_)) = &done {
            self.vectors.iter_mut().for_each(Vectors::abandon);
        }
        done
    }
}

impl Executor for CudaExecutor {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        let queued = self.queue_forward(batch);
        self.end(queued)
    }

    fn sample(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError> {
        let queued = self.queue_draws(rows);
        self.end(queued)
    }

    fn collect(&mut self) -> Result<Vec<Drawn>, DeviceError> {
        let drawn = self.wait();
        self.end(drawn)
    }

    fn runs_behind(&self) -> bool {
        true
    }

    fn logits(&self, segment: usize) -> Option<&[f32]> {
        let row = self.kept.get(segment)?.0.clone().next().filter(|_| self.vectors.is_none())?;
        let width = self.program.dims.vocab;
        // Tests and tools alone read them: those see a failure as logits that are not there.
        let all = self.read_back.get_or_init(|| self.read_logits().unwrap_or_default());
        all.get(row * width..(row + 1) * width)
    }

    fn vector(&self, segment: usize, row: usize) -> Option<&[f32]> {
        let row = self.kept.get(segment)?.0.clone().nth(row)?;
        self.vectors.as_ref()?.row(row, self.program.dims.hidden)
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        // Queued work may still use what is about to be freed; a lost device has no more of it.
        let _ = self.context.bind().and_then(|()| self.stream.synchronize());
    }
}
