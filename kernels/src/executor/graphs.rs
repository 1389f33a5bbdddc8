//! Steps that only decode, recorded: one graph for each of a few numbers of rows, made when it is first needed.
//!
//! A batch is padded to the next of these numbers. What a graph launches does not depend on the batch but for the
//! rows: attention reads its work from device memory, with as many blocks of threads as keep the device busy.

use super::inputs::Extent;
use super::memory::Memory;
use crate::driver::{Context, Graph, Stream};
use crate::error::CudaError;
use crate::ops::OpError;
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_device::Limits;

/// Numbers of rows; between them at most a third of the rows is padding.
const BUCKETS: [usize; 14] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256];
/// Blocks of threads for each multiprocessor: as many as fit with their shared memory, and some to follow.
const BLOCKS_PER_MULTIPROCESSOR: usize = 16;

/// The graphs that were made so far.
pub(super) struct Graphs {
    /// `None`: there was no memory to record it.
    graphs: HashMap<usize, Option<Graph>>,
    max_rows: usize,
    grid: usize,
    context: Arc<Context>,
}

impl Graphs {
    pub(super) fn new(context: &Arc<Context>, limits: &Limits) -> Result<Self, CudaError> {
        Ok(Self {
            graphs: HashMap::new(),
            max_rows: limits.max_seqs.min(limits.max_batch_tokens),
            grid: context.multiprocessors()? * BLOCKS_PER_MULTIPROCESSOR,
            context: Arc::clone(context),
        })
    }

    /// The rows that a batch of `rows` is padded to; none for more than the largest graph has.
    pub(super) fn bucket(&self, rows: usize) -> Option<usize> {
        BUCKETS.into_iter().find(|&bucket| bucket >= rows && bucket <= self.max_rows && rows > 0)
    }

    /// What a graph of `bucket` rows launches: few blocks for few rows, which have nothing to split.
    pub(super) fn extent(&self, bucket: usize, memory: &Memory) -> Extent {
        let grid = self.grid.max(bucket * memory.heads().keys);
        Extent { rows: bucket, wanted: bucket, grids: [grid, grid, 0] }
    }

    /// Plays the graph of `bucket` rows, recorded by `queue` if there is none yet; where memory did not suffice for
    /// that, `queue` queues each step by itself.
    pub(super) fn play(
        &mut self,
        bucket: usize,
        stream: &Stream,
        mut queue: impl FnMut() -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        if !self.graphs.contains_key(&bucket) {
            let graph = match Graph::record(&self.context, stream, &mut queue) {
                Err(OpError::Cuda(error)) if error.is_out_of_memory() => None,
                recorded => Some(recorded?),
            };
            self.graphs.insert(bucket, graph);
        }
        match self.graphs.get(&bucket) {
            Some(Some(graph)) => Ok(graph.launch(stream)?),
            _ => queue(),
        }
    }
}
