//! Rotary position embeddings: the config's parameters become a table of frequencies.
//!
//! Formulas and f32 steps follow `modeling_rope_utils.py` of transformers, so that the angles are its angles:
//! `default`, `linear` (kaiokendev), `llama3` (Llama 3.1), `yarn` (Peng et al., arXiv 2309.00071). Types whose
//! frequencies depend on the length of the sequence (`dynamic`, `longrope`) are refused: a cached prefix would be
//! wrong once the sequence grows.

use crate::error::ModelError;
use crate::json::Object;
use std::f64::consts::PI;
use tidegate_device::RopeTable;

/// Parameters of one model.
#[derive(Debug, PartialEq)]
pub(crate) struct Rope {
    theta: f64,
    max_position_embeddings: usize,
    scaling: Scaling,
}

#[derive(Debug, PartialEq)]
enum Scaling {
    None,
    Linear { factor: f64 },
    Llama3 { factor: f64, low: f64, high: f64, original: f64 },
    Yarn(Yarn),
}

#[derive(Debug, PartialEq)]
struct Yarn {
    factor: f64,
    original: f64,
    beta_fast: f64,
    beta_slow: f64,
    attention_factor: f64,
    truncate: bool,
}

/// Largest factor and length that are believed.
const MAX_FACTOR: f64 = 10_000.0;
const MAX_POSITIONS: usize = 1 << 24;

impl Rope {
    /// Reads `rope_parameters` (transformers 5), or `rope_scaling` and `rope_theta` (before it; it wins where a
    /// config has both, as in transformers).
    pub(crate) fn read(config: &Object) -> Result<Self, ModelError> {
        let max = config.uint("max_position_embeddings", 1..=MAX_POSITIONS)?;
        let max_position_embeddings = config.required("max_position_embeddings", max)?;
        let parameters = match config.object("rope_scaling")? {
            None => config.object("rope_parameters")?,
            found => found,
        };
        let theta_of = |object: &Object| object.float("rope_theta", 1.0..=1e12);
        let inner = parameters.as_ref().map_or(Ok(None), theta_of)?;
        let theta = inner.or(theta_of(config)?).unwrap_or(10_000.0);
        for object in parameters.iter().chain([config]) {
            refuse_partial(object)?;
        }
        let scaling = match &parameters {
            Some(parameters) => scaling(config, parameters, max_position_embeddings)?,
            None => Scaling::None,
        };
        Ok(Self { theta, max_position_embeddings, scaling })
    }

    /// Positions that the model is defined for: configs with `linear` or `yarn` state the length before scaling
    /// (vLLM reads them so), those with `llama3` the one after it.
    pub(crate) fn max_positions(&self) -> usize {
        let scaled = match &self.scaling {
            Scaling::None | Scaling::Llama3 { .. } => return self.max_position_embeddings,
            Scaling::Linear { factor } => self.max_position_embeddings as f64 * factor,
            Scaling::Yarn(yarn) => yarn.original * yarn.factor,
        };
        (scaled as usize).clamp(1, MAX_POSITIONS)
    }

    /// The table for heads of `head_dim`.
    pub(crate) fn table(&self, head_dim: usize) -> RopeTable {
        let periods = self.periods(head_dim);
        let plain = periods.iter().map(|p| 1.0 / p);
        let (inv_freq, attention_scale) = match &self.scaling {
            Scaling::None => (plain.collect(), 1.0),
            Scaling::Linear { factor } => (plain.map(|f| f / *factor as f32).collect(), 1.0),
            Scaling::Llama3 { factor, low, high, original } => {
                (plain.map(|f| llama3(f, *factor, *low, *high, *original)).collect(), 1.0)
            }
            Scaling::Yarn(yarn) => (yarn.inv_freq(&periods, self.theta), yarn.attention_factor as f32),
        };
        RopeTable { inv_freq, attention_scale }
    }

    /// theta ^ (2i / head_dim)
    fn periods(&self, head_dim: usize) -> Vec<f32> {
        let theta = self.theta as f32;
        (0..head_dim / 2).map(|i| theta.powf((2 * i) as f32 / head_dim as f32)).collect()
    }
}

fn refuse_partial(object: &Object) -> Result<(), ModelError> {
    match object.float("partial_rotary_factor", 0.0..=1.0)? {
        Some(part) if part < 1.0 => Err(object.unsupported("partial_rotary_factor", &part.to_string(), "1")),
        _ => Ok(()),
    }
}

fn scaling(config: &Object, parameters: &Object, max: usize) -> Result<Scaling, ModelError> {
    if parameters.get("full_attention").is_some() || parameters.get("sliding_attention").is_some() {
        return Err(config.unsupported("rope_parameters", "one per layer type", "one for all layers"));
    }
    let key = if parameters.get("rope_type").is_some() { "rope_type" } else { "type" };
    let required = |key, range| parameters.float(key, range).and_then(|value| parameters.required(key, value));
    let original = || original_positions(config, parameters, max);
    match parameters.text(key)?.unwrap_or("default") {
        "default" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear { factor: required("factor", 1.0..=MAX_FACTOR)? }),
        "llama3" => llama3_scaling(parameters, original()? as f64),
        "yarn" => Ok(Scaling::Yarn(Yarn::read(parameters, original()? as f64, max as f64)?)),
        other => Err(parameters.unsupported(key, other, "default, linear, llama3, yarn")),
    }
}

fn original_positions(config: &Object, parameters: &Object, max: usize) -> Result<usize, ModelError> {
    let key = "original_max_position_embeddings";
    // The outer key wins where both exist, as in transformers.
    let outer = config.uint(key, 1..=MAX_POSITIONS)?;
    Ok(outer.or(parameters.uint(key, 1..=MAX_POSITIONS)?).unwrap_or(max))
}

fn llama3_scaling(parameters: &Object, original: f64) -> Result<Scaling, ModelError> {
    let required = |key, range| parameters.float(key, range).and_then(|value| parameters.required(key, value));
    let factor = required("factor", 1.0..=MAX_FACTOR)?;
    let low = required("low_freq_factor", 1e-3..=MAX_FACTOR)?;
    let high = required("high_freq_factor", 1e-3..=MAX_FACTOR)?;
    if high <= low {
        return Err(parameters.wrong("high_freq_factor", format!("is {high}; it must be above low_freq_factor {low}")));
    }
    Ok(Scaling::Llama3 { factor, low, high, original })
}

/// Short waves stay, long waves are stretched by `factor`, those between are blended.
fn llama3(inv_freq: f32, factor: f64, low: f64, high: f64, original: f64) -> f32 {
    let wavelen = 2.0 * PI as f32 / inv_freq;
    let (factor, low, high, original) = (factor as f32, low as f32, high as f32, original as f32);
    if wavelen < original / high {
        inv_freq
    } else if wavelen > original / low {
        inv_freq / factor
    } else {
        let smooth = (original / wavelen - low) / (high - low);
        (1.0 - smooth) * inv_freq / factor + smooth * inv_freq
    }
}

impl Yarn {
    fn read(parameters: &Object, original: f64, max: f64) -> Result<Self, ModelError> {
        let float = |key| parameters.float(key, 1e-3..=MAX_FACTOR);
        // Where no factor is given, transformers takes the growth of the context.
        let factor = match parameters.float("factor", 1.0..=MAX_FACTOR)? {
            Some(factor) => factor,
            None => max / original,
        };
        let mscale = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
        let attention_factor = match (float("attention_factor")?, float("mscale")?, float("mscale_all_dim")?) {
            (Some(given), _, _) => given,
            (None, Some(one), Some(all)) => mscale(one) / mscale(all),
            _ => mscale(1.0),
        };
        Ok(Self {
            factor,
            original,
            beta_fast: float("beta_fast")?.unwrap_or(32.0),
            beta_slow: float("beta_slow")?.unwrap_or(1.0),
            attention_factor,
            truncate: parameters.flag("truncate")?.unwrap_or(true),
        })
    }

    /// Fast waves stay, slow waves are stretched, with a linear ramp over the dimensions between.
    fn inv_freq(&self, periods: &[f32], theta: f64) -> Vec<f32> {
        let dim = (2 * periods.len()) as f64;
        let (mut low, mut high) =
            (self.dimension(self.beta_fast, dim, theta), self.dimension(self.beta_slow, dim, theta));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        let blend = |(i, period): (usize, &f32)| {
            let stretched = (((i as f64 - low) / (high - low)) as f32).clamp(0.0, 1.0);
            1.0 / (self.factor as f32 * period) * stretched + 1.0 / period * (1.0 - stretched)
        };
        periods.iter().enumerate().map(blend).collect()
    }

    /// The dimension whose wave turns `rotations` times over the original context.
    fn dimension(&self, rotations: f64, dim: f64, theta: f64) -> f64 {
        dim * (self.original / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln())
    }
}

#[cfg(test)]
mod tests;
