//! The contract of programs and batches, checked once at the door, for every backend.
//!
//! A backend that has called these may index weights, slots, tokens and blocks without asking again.

use crate::executor::{Batch, BlockId, DeviceError, Limits, SampleRow, Segment};
use crate::program::{Dims, Node, Program, SlotId, WeightId};
use crate::weights::{TensorView, WeightSource};

/// A weight of the source with the shape that the program asks for.
pub fn find_weight<'a>(
    program: &Program,
    id: WeightId,
    weights: &'a dyn WeightSource,
) -> Result<TensorView<'a>, DeviceError> {
    let spec = &program.weights[id.0];
    let view = weights.tensor(&spec.name).ok_or_else(|| DeviceError::MissingWeight { name: spec.name.clone() })?;
    if view.shape != spec.shape {
        return Err(DeviceError::WeightShape {
            name: spec.name.clone(),
            found: view.shape.to_vec(),
            expected: spec.shape.clone(),
        });
    }
    Ok(view)
}

/// Checks that every id is in range and every width fits its neighbours.
pub fn check_program(program: &Program) -> Result<(), DeviceError> {
    let Dims { num_heads, num_kv_heads, head_dim, .. } = program.dims;
    let heads_fit = num_kv_heads > 0 && num_heads % num_kv_heads == 0 && head_dim % 2 == 0;
    if !heads_fit {
        let what = format!("{num_heads} heads over {num_kv_heads} key heads of width {head_dim}");
        return Err(DeviceError::BadProgram(what));
    }
    if program.rope.inv_freq.len() != head_dim / 2 {
        let what = format!("{} rotations for heads of width {head_dim}", program.rope.inv_freq.len());
        return Err(DeviceError::BadProgram(what));
    }
    if !matches!(program.nodes.last(), Some(Node::Logits { .. } | Node::Vectors { .. })) {
        return Err(DeviceError::BadProgram("the last node is neither Logits nor Vectors".to_owned()));
    }
    let nodes = program.nodes.iter().enumerate();
    nodes.into_iter().try_for_each(|(i, node)| {
        NodeCheck { program }.check(node).map_err(|why| DeviceError::BadProgram(format!("node {i}: {why}")))
    })
}

/// Checks of one node; each answers what is wrong in words.
struct NodeCheck<'a> {
    program: &'a Program,
}

impl NodeCheck<'_> {
    fn check(&self, node: &Node) -> Result<(), String> {
        let dims = &self.program.dims;
        let qkv_width = (dims.num_heads + 2 * dims.num_kv_heads) * dims.head_dim;
        match node {
            Node::Embed { table, out } => {
                self.slot(*out, dims.hidden)?;
                self.weight(*table, &[dims.vocab, dims.hidden])
            }
            Node::AddRmsNorm { residual, delta, weight, out, .. } => {
                let width = self.width(*out)?;
                self.slot(*residual, width)?;
                delta.map_or(Ok(()), |d| self.slot(d, width))?;
                self.weight(*weight, &[width])
            }
            Node::Linear { input, parts, out } => self.linear(*input, parts, *out),
            Node::HeadNorm { qkv, q_weight, k_weight, .. } => {
                self.slot(*qkv, qkv_width)?;
                self.weight(*q_weight, &[dims.head_dim])?;
                self.weight(*k_weight, &[dims.head_dim])
            }
            Node::RopeCache { qkv, layer } => {
                self.slot(*qkv, qkv_width)?;
                self.layer(*layer)
            }
            Node::Attend { qkv, layer, window, out, .. } => {
                self.slot(*qkv, qkv_width)?;
                self.slot(*out, dims.num_heads * dims.head_dim)?;
                if *window == Some(0) {
                    return Err("a window of 0 tokens".to_owned());
                }
                self.layer(*layer)
            }
            Node::GatedActivation { gate_up, out, .. } => self.slot(*gate_up, 2 * self.width(*out)?),
            Node::Logits { residual, delta, norm, head, .. } => {
                self.slot(*residual, dims.hidden)?;
                delta.map_or(Ok(()), |d| self.slot(d, dims.hidden))?;
                self.weight(*norm, &[dims.hidden])?;
                self.weight(*head, &[dims.vocab, dims.hidden])
            }
            Node::Vectors { residual, delta, norm, .. } => {
                self.slot(*residual, dims.hidden)?;
                delta.map_or(Ok(()), |d| self.slot(d, dims.hidden))?;
                self.weight(*norm, &[dims.hidden])
            }
        }
    }

    fn linear(&self, input: SlotId, parts: &[(WeightId, Option<WeightId>)], out: SlotId) -> Result<(), String> {
        let in_width = self.width(input)?;
        let mut total = 0;
        for (weight, bias) in parts {
            let rows = *self.shape(*weight)?.first().ok_or("a linear weight without rows")?;
            self.weight(*weight, &[rows, in_width])?;
            bias.map_or(Ok(()), |b| self.weight(b, &[rows]))?;
            total += rows;
        }
        self.slot(out, total)
    }

    fn shape(&self, id: WeightId) -> Result<&[usize], String> {
        let spec = self.program.weights.get(id.0).ok_or_else(|| format!("there is no weight {}", id.0))?;
        Ok(&spec.shape)
    }

    fn weight(&self, id: WeightId, expected: &[usize]) -> Result<(), String> {
        let shape = self.shape(id)?;
        if shape == expected {
            return Ok(());
        }
        Err(format!("`{}` has shape {shape:?} where {expected:?} belongs", self.program.weights[id.0].name))
    }

    fn width(&self, id: SlotId) -> Result<usize, String> {
        let slot = self.program.slots.get(id.0).ok_or_else(|| format!("there is no slot {}", id.0))?;
        Ok(slot.width)
    }

    fn slot(&self, id: SlotId, expected: usize) -> Result<(), String> {
        let width = self.width(id)?;
        if width == expected {
            return Ok(());
        }
        Err(format!("slot `{}` is {width} wide where {expected} belongs", self.program.slots[id.0].name))
    }

    fn layer(&self, layer: usize) -> Result<(), String> {
        let num_layers = self.program.dims.num_layers;
        if layer < num_layers { Ok(()) } else { Err(format!("layer {layer} of {num_layers}")) }
    }
}

/// Checks a batch against the limits, the vocabulary and the positions, and that no block is written by one
/// segment and used by another.
pub fn check_batch(batch: &Batch<'_>, dims: &Dims, limits: &Limits) -> Result<(), DeviceError> {
    let bad = |what: String| Err(DeviceError::BadBatch(what));
    let num_rows: usize = batch.segments.iter().map(Segment::num_tokens).sum();
    if batch.segments.len() > limits.max_seqs {
        return bad(format!("{} segments; the limit is {}", batch.segments.len(), limits.max_seqs));
    }
    if num_rows > limits.max_batch_tokens {
        return bad(format!("{num_rows} tokens; the limit is {}", limits.max_batch_tokens));
    }
    for (i, segment) in batch.segments.iter().enumerate() {
        if let Err(what) = check_segment(segment, dims, limits) {
            return bad(format!("segment {i}: {what}"));
        }
    }
    check_sharing(batch, limits)
}

fn check_segment(segment: &Segment<'_>, dims: &Dims, limits: &Limits) -> Result<(), String> {
    let end = segment.start.saturating_add(segment.num_tokens());
    if segment.num_tokens() == 0 {
        return Err("no tokens".to_owned());
    }
    if end > dims.max_positions {
        return Err(format!("ends at position {end}; the model has {}", dims.max_positions));
    }
    if let Some(token) = segment.tokens.iter().find(|&&t| t as usize >= dims.vocab) {
        return Err(format!("token {token} is outside the vocabulary of {}", dims.vocab));
    }
    if segment.blocks.len() < end.div_ceil(limits.block_tokens) {
        return Err(format!("{} blocks of {} for {end} positions", segment.blocks.len(), limits.block_tokens));
    }
    match segment.blocks.iter().find(|b| b.0 as usize >= limits.num_blocks) {
        Some(block) => Err(format!("block {} of {}", block.0, limits.num_blocks)),
        None => Ok(()),
    }
}

/// The blocks that a segment writes, and those that it only reads.
fn split_blocks<'a>(segment: &Segment<'a>, limits: &Limits) -> (&'a [BlockId], &'a [BlockId]) {
    let end = (segment.start + segment.num_tokens()).div_ceil(limits.block_tokens);
    let (read, written) = segment.blocks[..end].split_at(segment.start / limits.block_tokens);
    (written, read)
}

fn check_sharing(batch: &Batch<'_>, limits: &Limits) -> Result<(), DeviceError> {
    let mut written = vec![0u64; limits.num_blocks.div_ceil(64)];
    let place = |block: &BlockId| (block.0 as usize / 64, 1u64 << (block.0 % 64));
    for block in batch.segments.iter().flat_map(|s| split_blocks(s, limits).0) {
        let (word, bit) = place(block);
        if written[word] & bit != 0 {
            return Err(DeviceError::BadBatch(format!("block {} is written twice", block.0)));
        }
        written[word] |= bit;
    }
    let mut read = batch.segments.iter().flat_map(|s| split_blocks(s, limits).1);
    let clash = read.find(|block| {
        let (word, bit) = place(block);
        written[word] & bit != 0
    });
    match clash {
        Some(block) => Err(DeviceError::BadBatch(format!("block {} is both written and read as past", block.0))),
        None => Ok(()),
    }
}

/// Checks that what a batch is fed was drawn: `num_drawn` rows by the last `sample`.
pub fn check_fed(batch: &Batch<'_>, num_drawn: usize) -> Result<(), DeviceError> {
    match batch.segments.iter().filter_map(|s| s.fed).find(|&row| row >= num_drawn) {
        Some(row) => Err(DeviceError::BadBatch(format!("fed from row {row}; the last draw had {num_drawn}"))),
        None => Ok(()),
    }
}

/// Checks that sample rows name segments whose logits the last forward kept; `kept[i]` says so for segment `i`.
pub fn check_rows(rows: &[SampleRow<'_>], kept: impl Fn(usize) -> bool) -> Result<(), DeviceError> {
    match rows.iter().find(|row| !kept(row.segment)) {
        Some(row) => Err(DeviceError::BadBatch(format!("segment {} kept no logits", row.segment))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: Dims =
        Dims { num_layers: 1, num_heads: 1, num_kv_heads: 1, head_dim: 2, hidden: 2, vocab: 10, max_positions: 40 };
    const LIMITS: Limits = Limits { num_blocks: 4, block_tokens: 16, max_batch_tokens: 32, max_seqs: 2 };

    fn blocks(ids: &[u32]) -> Vec<BlockId> {
        ids.iter().copied().map(BlockId).collect()
    }

    /// Each segment: tokens, start, blocks.
    fn check(segments: &[(&[u32], usize, &[u32])]) -> Result<(), String> {
        let tables: Vec<Vec<BlockId>> = segments.iter().map(|s| blocks(s.2)).collect();
        let segments = segments.iter().zip(&tables).map(|((tokens, start, _), blocks)| Segment {
            tokens,
            fed: None,
            start: *start,
            blocks,
            want_result: true,
        });
        check_batch(&Batch { segments: segments.collect() }, &DIMS, &LIMITS).map_err(|e| e.to_string())
    }

    #[test]
    fn a_batch_within_the_limits_passes() {
        assert_eq!(check(&[(&[1, 2], 0, &[0]), (&[3], 16, &[1, 2])]), Ok(()));
        assert_eq!(check(&[(&[1], 16, &[0, 1]), (&[1], 16, &[0, 2])]), Ok(()), "a full block may be shared");
        assert_eq!(check(&[]), Ok(()));
    }

    #[test]
    fn each_breach_is_named() {
        let bad = |segments: &[(&[u32], usize, &[u32])], want: &str| {
            let error = check(segments).unwrap_err();
            assert!(error.contains(want), "{error} does not say {want}");
        };
        bad(&[(&[], 0, &[0])], "no tokens");
        bad(&[(&[10], 0, &[0])], "token 10");
        bad(&[(&[1], 16, &[0])], "1 blocks of 16 for 17 positions");
        bad(&[(&[1], 0, &[4])], "block 4 of 4");
        bad(&[(&[1], 40, &[0, 1, 2])], "ends at position 41");
        bad(&[(&[1], usize::MAX, &[0])], "the model has 40");
        bad(&[(&[1; 33], 0, &[0, 1, 2])], "33 tokens");
        bad(&[(&[1], 0, &[0]), (&[1], 0, &[1]), (&[1], 0, &[2])], "3 segments");
        bad(&[(&[1], 0, &[0]), (&[1], 3, &[0])], "block 0 is written twice");
        bad(&[(&[1], 16, &[0, 1]), (&[1], 3, &[0])], "block 0 is both written and read");
        bad(&[(&[1; 20], 0, &[1, 1])], "block 1 is written twice");
    }
}
