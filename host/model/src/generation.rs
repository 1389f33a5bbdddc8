//! `generation_config.json`: what the model's makers recommend where a caller says nothing.

use crate::error::ModelError;
use crate::json::Object;
use tidegate_types::Sampling;

/// Defaults of a model.
#[derive(Debug, Default)]
pub(crate) struct Generation {
    pub(crate) sampling: Sampling,
    /// Tokens that end an answer, where the file names some.
    pub(crate) eos_token_ids: Option<Vec<u32>>,
}

impl Generation {
    pub(crate) fn read(object: &Object, vocab: usize) -> Result<Self, ModelError> {
        let float = |key, range| Ok(object.float(key, range)?.map(|x| x as f32));
        let mut temperature = float("temperature", 0.0..=100.0)?;
        if object.flag("do_sample")? == Some(false) {
            // The makers ask for greedy decoding; whatever temperature stands beside it is not used.
            temperature = Some(0.0);
        }
        let sampling = Sampling {
            temperature,
            top_p: float("top_p", f64::MIN_POSITIVE..=1.0)?,
            top_k: object.uint("top_k", 0..=u32::MAX as usize)?.map(|k| k as i64),
            min_p: float("min_p", 0.0..=1.0)?,
            repetition_penalty: float("repetition_penalty", 1e-3..=1e3)?,
            ..Sampling::default()
        };
        Ok(Self { sampling, eos_token_ids: object.token_ids("eos_token_id", vocab)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn read(json: &str) -> Result<Generation, ModelError> {
        Generation::read(&Object::parse(Path::new("generation_config.json"), json.as_bytes()).unwrap(), 10)
    }

    #[test]
    fn what_is_absent_stays_open() {
        let generation = read("{}").unwrap();
        assert_eq!(generation.sampling, Sampling::default());
        assert_eq!(generation.eos_token_ids, None);
    }

    #[test]
    fn what_is_given_becomes_the_default() {
        let json = r#"{"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": null,
            "repetition_penalty": 1.05, "eos_token_id": [7, 9]}"#;
        let generation = read(json).unwrap();
        let sampling = generation.sampling;
        assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (Some(0.7), Some(0.8), Some(20)));
        assert_eq!((sampling.min_p, sampling.repetition_penalty), (None, Some(1.05)));
        assert_eq!(generation.eos_token_ids, Some(vec![7, 9]));
        assert_eq!(read(r#"{"eos_token_id": 2}"#).unwrap().eos_token_ids, Some(vec![2]));
    }

    #[test]
    fn no_sampling_means_greedy() {
        let generation = read(r#"{"do_sample": false, "temperature": 0.6}"#).unwrap();
        assert_eq!(generation.sampling.temperature, Some(0.0));
    }

    #[test]
    fn values_out_of_range_are_refused_by_key() {
        for (json, key) in [
            (r#"{"top_p": 0}"#, "top_p"),
            (r#"{"temperature": -1}"#, "temperature"),
            (r#"{"top_k": 1.5}"#, "top_k"),
            (r#"{"eos_token_id": [-1]}"#, "eos_token_id"),
            (r#"{"eos_token_id": [1, 10]}"#, "eos_token_id"),
            (r#"{"do_sample": "no"}"#, "do_sample"),
        ] {
            let error = read(json).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
