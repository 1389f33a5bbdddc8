//! How the tokens of an answer are drawn: what the caller says, else the model's own defaults, else the neutral values.

use std::hash::{BuildHasher, RandomState};
use tidegate_types::{Sampling, SamplingParams};

/// The caller's value, else the model's, else the neutral one.
pub(super) fn resolve(asked: &Sampling, model: &Sampling, seed: u64) -> SamplingParams {
    let neutral = SamplingParams::default();
    SamplingParams {
        temperature: asked.temperature.or(model.temperature).unwrap_or(neutral.temperature),
        // OpenAI's range begins at 0.
        top_p: asked.top_p.or(model.top_p).map_or(neutral.top_p, |share| share.max(f32::MIN_POSITIVE)),
        top_k: asked.top_k.or(model.top_k).map_or(neutral.top_k, |most| u32::try_from(most).unwrap_or(0)),
        min_p: asked.min_p.or(model.min_p).unwrap_or(neutral.min_p),
        presence_penalty: asked.presence_penalty.unwrap_or(neutral.presence_penalty),
        frequency_penalty: asked.frequency_penalty.unwrap_or(neutral.frequency_penalty),
        repetition_penalty: asked.repetition_penalty.or(model.repetition_penalty).unwrap_or(neutral.repetition_penalty),
        seed,
        logit_bias: asked.logit_bias.clone(),
        logprobs: asked.logprobs,
    }
}

/// One seed for each choice: the caller's for the first, and numbers that follow from it for the others, so
/// that the same request gives the same answers.
pub(crate) fn seeds(asked: Option<u64>, n: u32) -> Vec<u64> {
    // The standard library's hasher is keyed anew each time, from random numbers that each thread drew once: a seed
    // that nobody asked for costs no call of the kernel.
    let first = asked.unwrap_or_else(|| RandomState::new().hash_one(0_u8));
    // The odd constant of the golden ratio spreads the choices over all seeds.
    (0..u64::from(n)).map(|i| first.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Say = fn(&mut Sampling, f32);
    type Read = fn(&SamplingParams) -> f32;

    /// What says each number, and what reads it.
    const NUMBERS: [(&str, Say, Read); 7] = [
        ("temperature", |said, x| said.temperature = Some(x), |done| done.temperature),
        ("top_p", |said, x| said.top_p = Some(x), |done| done.top_p),
        ("top_k", |said, x| said.top_k = Some((x * 8.0) as i64), |done| done.top_k as f32 / 8.0),
        ("min_p", |said, x| said.min_p = Some(x), |done| done.min_p),
        ("repetition_penalty", |said, x| said.repetition_penalty = Some(x), |done| done.repetition_penalty),
        ("presence_penalty", |said, x| said.presence_penalty = Some(x), |done| done.presence_penalty),
        ("frequency_penalty", |said, x| said.frequency_penalty = Some(x), |done| done.frequency_penalty),
    ];

    #[test]
    fn each_number_is_the_callers_else_the_models_else_the_neutral() {
        let neutral = SamplingParams { seed: 3, ..SamplingParams::default() };
        assert_eq!(resolve(&Sampling::default(), &Sampling::default(), 3), neutral);
        for (name, say, read) in NUMBERS {
            let said = |x: f32| {
                let mut sampling = Sampling::default();
                say(&mut sampling, x);
                sampling
            };
            // What no generation_config.json has is neutral where the caller is silent.
            let has_default = !["presence_penalty", "frequency_penalty"].contains(&name);
            let silent = if has_default { 0.5 } else { read(&neutral) };
            let none = Sampling::default();
            for (asked, model, expected) in
                [(&said(0.25), &said(0.5), 0.25), (&said(0.25), &none, 0.25), (&none, &said(0.5), silent)]
            {
                let done = resolve(asked, model, 3);
                assert_eq!(read(&done), expected, "{name}");
                let mut others = NUMBERS.iter().filter(|(other, ..)| *other != name);
                assert!(others.all(|(_, _, read)| read(&done) == read(&neutral)), "{name} changes another");
            }
        }
    }

    #[test]
    fn what_only_a_caller_says_is_taken_from_the_caller() {
        let asked = Sampling { logit_bias: vec![(7, -1.5)], logprobs: Some(2), seed: Some(9), ..Sampling::default() };
        let done =
            resolve(&asked, &Sampling { logprobs: Some(5), logit_bias: vec![(1, 1.0)], ..Sampling::default() }, 3);
        assert_eq!((done.logit_bias, done.logprobs, done.seed), (vec![(7, -1.5)], Some(2), 3));
    }

    #[test]
    fn what_the_engine_has_another_value_for_is_that() {
        let with = |top_p: f32, top_k: i64| {
            let asked = Sampling { top_p: Some(top_p), top_k: Some(top_k), ..Sampling::default() };
            let done = resolve(&asked, &Sampling { top_k: Some(9), ..Sampling::default() }, 0);
            (done.top_p, done.top_k)
        };
        assert_eq!(with(0.0, -1), (f32::MIN_POSITIVE, 0));
        assert_eq!(with(1.0, 0), (1.0, 0));
        assert_eq!(with(1e-6, 7), (1e-6, 7));
    }

    #[test]
    fn the_same_seed_gives_the_same_choices_and_each_another() {
        let seeds = seeds(Some(7), 3);
        assert_eq!(seeds[0], 7);
        assert_ne!(seeds[1], seeds[2]);
        assert_eq!(seeds, super::seeds(Some(7), 3));
    }
}
