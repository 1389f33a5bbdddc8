//! Tensors of a checkpoint that its program does not read. A folder whose config.json lacks a key (a bias, norms of heads)
//! or whose adapter was not merged would load without them, and answer otherwise than it was made to.
//!
//! Beside the parts of a program a checkpoint may have what it likes: further heads, layers for drafts behind the last,
//! towers for images.

use std::collections::HashSet;
use tidegate_device::Program;

/// What is in layers and may stay unread: tables that are computed here (the rotation's, masks, of old checkpoints), and
/// scales of a cache of 8 bits, which is not made here.
const HARMLESS: [&str; 6] = [".inv_freq", ".cos_cached", ".sin_cached", ".masked_bias", ".k_scale", ".v_scale"];
/// The head of a model that takes its embedding for one, or that makes vectors.
const HEAD: &str = "lm_head.weight";

/// Those of `names` that are of a part of `program` and that it does not read, in order.
pub(super) fn unread<'a>(names: impl Iterator<Item = &'a str>, program: &Program) -> Vec<&'a str> {
    let read: HashSet<&str> = program.weights.iter().map(|spec| spec.name.as_str()).collect();
    let is_harmless = |name: &str| name == HEAD || HARMLESS.iter().any(|end| name.ends_with(end));
    let mut unread: Vec<&str> =
        names.filter(|name| !read.contains(name) && is_part(name, program) && !is_harmless(name)).collect();
    unread.sort_unstable();
    unread
}

/// Whether a tensor is of the embedding, a layer that is computed, the last norm or the head.
fn is_part(name: &str, program: &Program) -> bool {
    // A model without a head may have its tensors without the prefix.
    let prefixed = program.weights.iter().any(|spec| spec.name.starts_with(PREFIX));
    let inner = if prefixed { name.strip_prefix(PREFIX) } else { Some(name) };
    let layer = |rest: &str| rest.split('.').next()?.parse::<usize>().ok();
    let is_inner = |name: &str| match name.strip_prefix("layers.") {
        Some(rest) => layer(rest).is_some_and(|layer| layer < program.dims.num_layers),
        None => name.starts_with("embed_tokens.") || name.starts_with("norm."),
    };
    inner.is_some_and(is_inner) || name.starts_with("lm_head.")
}

const PREFIX: &str = "model.";
