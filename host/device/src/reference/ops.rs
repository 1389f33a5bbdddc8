//! The formulas of the nodes, on one row or one head; public for the tests of other backends and for heads
//! that are applied on the host. Sums run in f64, in index order.

use crate::executor::DeviceError;
use crate::program::{Activation, RopeTable};
use crate::weights::{DType, TensorView};

/// What an `Attend` node says.
pub struct Attention {
    /// Factor on the scores.
    pub scale: f32,
    /// A token sees itself and `window - 1` tokens before it.
    pub window: Option<usize>,
    /// Which layer's cache.
    pub layer: usize,
}

/// A buffer of zeros, or the error that says how much was asked for; `elems` is `None` if even that overflows.
pub fn zeros(what: &'static str, elems: Option<usize>) -> Result<Vec<f32>, DeviceError> {
    let bytes = elems.and_then(|n| n.checked_mul(size_of::<f32>())).unwrap_or(usize::MAX);
    let out_of_memory = || DeviceError::OutOfMemory { what, bytes };
    let elems = elems.ok_or_else(out_of_memory)?;
    let mut data = Vec::new();
    data.try_reserve_exact(elems).map_err(|_| out_of_memory())?;
    data.resize(elems, 0.0);
    Ok(data)
}

/// Any checkpoint type to f32, exactly.
pub fn to_f32(view: TensorView<'_>) -> Vec<f32> {
    let pairs = || view.data.chunks_exact(2).map(|b| [b[0], b[1]]);
    match view.dtype {
        DType::F32 => view.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        DType::F16 => pairs().map(|b| half::f16::from_le_bytes(b).to_f32()).collect(),
        DType::BF16 => pairs().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect(),
    }
}

/// Sum of products, in index order.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

/// `x / sqrt(mean(x^2) + eps) * weight`
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mean_square = dot(x, x) / x.len() as f64;
    let scale = 1.0 / (mean_square + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(x, w)| (f64::from(*x) * scale * f64::from(*w)) as f32).collect()
}

/// `x * W^T + b` with `W` as `[out, in]`.
pub fn linear(x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let rows = weight.chunks_exact(x.len()).enumerate();
    rows.map(|(i, row)| (dot(x, row) + bias.map_or(0.0, |b| f64::from(b[i]))) as f32).collect()
}

/// Rotates the pairs (i, i + n/2). The angle is rounded to f32 before its sine is taken, as transformers does:
/// at large positions that rounding is part of the model.
pub fn rotate(head: &[f32], rope: &RopeTable, position: usize) -> Vec<f32> {
    let half = head.len() / 2;
    let mut out = head.to_vec();
    for i in 0..half {
        let (sin, cos) = f64::from(position as f32 * rope.inv_freq[i]).sin_cos();
        let scale = f64::from(rope.attention_scale);
        let (a, b) = (f64::from(head[i]), f64::from(head[i + half]));
        out[i] = ((a * cos - b * sin) * scale) as f32;
        out[i + half] = ((b * cos + a * sin) * scale) as f32;
    }
    out
}

/// Shares that sum to 1.
pub fn softmax(scores: impl Iterator<Item = f64>) -> Vec<f64> {
    let scores: Vec<f64> = scores.collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// `sum_i shares[i] * vectors[i]`
pub fn weighted_sum<'a>(shares: &[f64], vectors: impl Iterator<Item = &'a [f32]>, width: usize) -> Vec<f32> {
    let mut sum = vec![0f64; width];
    for (share, vector) in shares.iter().zip(vectors) {
        sum.iter_mut().zip(vector).for_each(|(s, x)| *s += share * f64::from(*x));
    }
    sum.into_iter().map(|x| x as f32).collect()
}

/// `act(gate) * up` over a row of `gate` then `up`.
pub fn gated(gate_up: &[f32], act: Activation) -> Vec<f32> {
    let (gate, up) = gate_up.split_at(gate_up.len() / 2);
    gate.iter().zip(up).map(|(g, u)| (activate(f64::from(*g), act) * f64::from(*u)) as f32).collect()
}

fn activate(x: f64, act: Activation) -> f64 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_checkpoint_type_converts_exactly() {
        let check = |dtype, data: &[u8]| {
            let view = TensorView { dtype, shape: &[2], data };
            assert_eq!(to_f32(view), [1.5, -2.0]);
        };
        let f32s: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        check(DType::F32, &f32s);
        check(DType::F16, &[0x00, 0x3e, 0x00, 0xc0]);
        check(DType::BF16, &[0xc0, 0x3f, 0x00, 0xc0]);
    }

    #[test]
    fn a_quarter_turn_moves_the_first_half_to_the_second() {
        let rope = RopeTable { inv_freq: vec![std::f32::consts::FRAC_PI_2], attention_scale: 2.0 };
        let turned = rotate(&[1.0, 0.0], &rope, 1);
        assert!(turned[0].abs() < 1e-6 && (turned[1] - 2.0).abs() < 1e-6, "{turned:?}");
    }

    #[test]
    fn activations_match_known_values() {
        assert!((activate(1.0, Activation::Silu) - 0.731_058_578).abs() < 1e-8);
        assert!((activate(1.0, Activation::GeluTanh) - 0.841_191_990).abs() < 1e-8);
    }

    #[test]
    fn too_much_memory_is_an_error() {
        assert!(matches!(zeros("x", None), Err(DeviceError::OutOfMemory { .. })));
        assert!(matches!(zeros("x", Some(usize::MAX / 8)), Err(DeviceError::OutOfMemory { .. })));
    }
}
