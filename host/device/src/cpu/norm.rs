//! Row-wise steps around the products: norms, rotation, gated activations. One unit is a few rows.
//!
//! A row's sum of squares is taken in sixteen lanes, in order, then across them in a fixed tree: the same bits
//! wherever the row is.

use super::simd::{LANES, Op, Simd};
use crate::program::{Activation, Dims};

/// `1 / sqrt(mean(x^2) + eps)`
#[inline(always)]
fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let mut acc = s.splat(0.0);
    for part in x.chunks(LANES) {
        let v = s.load_slice(part);
        acc = s.fma(v, v, acc);
    }
    1.0 / (s.sum(acc) / x.len() as f32 + eps).sqrt()
}

/// `x * factor * weight`
#[inline(always)]
fn scale<S: Simd>(s: S, x: &[f32], factor: f32, weight: &[f32], out: &mut [f32]) {
    let factor = s.splat(factor);
    for ((x, w), o) in x.chunks(LANES).zip(weight.chunks(LANES)).zip(out.chunks_mut(LANES)) {
        let v = s.mul(s.mul(s.load_slice(x), factor), s.load_slice(w));
        s.store_slice(o, v);
    }
}

/// `residual += delta`, then `out = rms_norm(residual) * weight`, for one row.
pub(super) struct NormRow<'a> {
    /// The stream.
    pub(super) residual: &'a mut [f32],
    /// Added first.
    pub(super) delta: Option<&'a [f32]>,
    /// Of the norm.
    pub(super) weight: &'a [f32],
    /// Inside the root.
    pub(super) eps: f32,
    /// Normed.
    pub(super) out: &'a mut [f32],
}

impl Op for NormRow<'_> {
    type Out = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        debug_assert!(self.residual.len() == self.out.len() && self.weight.len() == self.out.len());
        if let Some(delta) = self.delta {
            for (r, d) in self.residual.iter_mut().zip(delta) {
                *r += d;
            }
        }
        let factor = inverse_rms(s, self.residual, self.eps);
        scale(s, self.residual, factor, self.weight, self.out);
    }
}

/// Norms each query and key head of one row in place.
pub(super) struct HeadNormRow<'a> {
    /// Queries, keys, values.
    pub(super) qkv: &'a mut [f32],
    /// `[head_dim]` for queries.
    pub(super) q_weight: &'a [f32],
    /// `[head_dim]` for keys.
    pub(super) k_weight: &'a [f32],
    /// Inside the root.
    pub(super) eps: f32,
    /// Query heads; the key heads follow.
    pub(super) dims: &'a Dims,
}

impl Op for HeadNormRow<'_> {
    type Out = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Dims { num_heads, num_kv_heads, head_dim, .. } = *self.dims;
        let heads = self.qkv.chunks_exact_mut(head_dim).take(num_heads + num_kv_heads);
        for (i, head) in heads.enumerate() {
            let weight = if i < num_heads { self.q_weight } else { self.k_weight };
            let factor = s.splat(inverse_rms(s, head, self.eps));
            for (x, w) in head.chunks_mut(LANES).zip(weight.chunks(LANES)) {
                let v = s.mul(s.mul(s.load_slice(x), factor), s.load_slice(w));
                s.store_slice(x, v);
            }
        }
    }
}

/// Cosines, then sines, of one position: `head_dim` floats, computed once a step for all layers.
pub(super) fn rotation(position: usize, inv_freq: &[f32], scale: f32, out: &mut [f32]) {
    let (cos, sin) = out.split_at_mut(inv_freq.len());
    for ((c, s), freq) in cos.iter_mut().zip(sin).zip(inv_freq) {
        let angle = position as f32 * freq;
        *c = angle.cos() * scale;
        *s = angle.sin() * scale;
    }
}

/// Rotates `heads` heads in place.
pub(super) struct Rotate<'a> {
    /// Heads, one after the other.
    pub(super) heads: &'a mut [f32],
    /// From [`rotation`].
    pub(super) rotation: &'a [f32],
}

impl Op for Rotate<'_> {
    type Out = ();
    #[inline(always)]
    fn call<S: Simd>(self, _s: S) {
        let head_dim = self.rotation.len();
        let (cos, sin) = self.rotation.split_at(head_dim / 2);
        for head in self.heads.chunks_exact_mut(head_dim) {
            let (low, high) = head.split_at_mut(head_dim / 2);
            for (((a, b), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
            }
        }
    }
}

/// `out = act(gate) * up` for one row.
pub(super) struct GatedRow<'a> {
    /// Gate, then up.
    pub(super) gate_up: &'a [f32],
    /// The function.
    pub(super) act: Activation,
    /// Half as wide.
    pub(super) out: &'a mut [f32],
}

impl Op for GatedRow<'_> {
    type Out = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (gate, up) = self.gate_up.split_at(self.out.len());
        for ((g, u), o) in gate.chunks(LANES).zip(up.chunks(LANES)).zip(self.out.chunks_mut(LANES)) {
            let x = s.load_slice(g);
            // Both are x times a sigmoid: 1 + tanh(z) = 2 sigmoid(2 z).
            let z = match self.act {
                Activation::Silu => x,
                Activation::GeluTanh => {
                    let cubed = s.mul(s.mul(x, x), x);
                    s.mul(s.fma(cubed, s.splat(0.044_715), x), s.splat(1.595_769))
                }
            };
            let denominator = s.add(s.splat(1.0), s.exp(s.sub(s.splat(0.0), z)));
            s.store_slice(o, s.mul(s.div(x, denominator), s.load_slice(u)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::portable::Portable;

    const PORTABLE: Portable<{ crate::cpu::simd::EXACT }> = Portable;

    #[test]
    fn rotation_turns_the_pairs_half_a_head_apart_and_scales_them() {
        for scale in [1.0, 1.3] {
            let mut table = [0.0; 4];
            rotation(1, &[std::f32::consts::FRAC_PI_2, 0.0], scale, &mut table);
            let mut heads = [1.0, 2.0, 3.0, 4.0];
            PORTABLE.run(Rotate { heads: &mut heads, rotation: &table });
            for (x, turned) in heads.iter().zip([-3.0, 2.0, 1.0, 4.0]) {
                assert!((x - turned * scale).abs() < 1e-6, "{heads:?} of the factor {scale}");
            }
        }
    }

    #[test]
    fn gated_activations_match_their_formulas() {
        for (act, f) in [
            (Activation::Silu, (|x| x / (1.0 + (-x).exp())) as fn(f64) -> f64),
            (Activation::GeluTanh, |x| {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh())
            }),
        ] {
            let gate: Vec<f32> = (0..37).map(|i| (i as f32 - 18.0) * 1.7).collect();
            let both: Vec<f32> = gate.iter().chain(&[0.5; 37]).copied().collect();
            let mut out = vec![0.0; 37];
            PORTABLE.run(GatedRow { gate_up: &both, act, out: &mut out });
            for (x, y) in gate.iter().zip(&out) {
                let expected = f(f64::from(*x)) * 0.5;
                assert!((f64::from(*y) - expected).abs() <= 1e-6 + 1e-6 * expected.abs(), "{act:?}({x}) = {y}");
            }
        }
    }
}
