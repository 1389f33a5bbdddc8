//! Behaviour of the whole sampler; the parts have their own tests beside them.

use super::*;
use proptest::prelude::*;

struct Case {
    params: SamplingParams,
    position: usize,
    prompt: Vec<u32>,
    output: Vec<u32>,
    mask: Option<Vec<u32>>,
}

impl Case {
    fn new(params: SamplingParams) -> Self {
        Self { params, position: 7, prompt: vec![], output: vec![], mask: None }
    }

    fn draw(&self, logits: &[f32]) -> Result<SampledToken, SampleError> {
        let row = SampleRow {
            segment: 0,
            params: &self.params,
            position: self.position,
            prompt: &self.prompt,
            output: &self.output,
            mask: self.mask.as_deref(),
        };
        Sampler::new(logits.len()).draw(logits, &row)
    }

    fn token(&self, logits: &[f32]) -> u32 {
        self.draw(logits).unwrap().id
    }
}

fn greedy() -> Case {
    Case::new(SamplingParams::greedy())
}

#[test]
fn greedy_takes_the_lowest_id_on_ties() {
    assert_eq!(greedy().token(&[1.0, 5.0, 5.0, 4.0]), 1);
    assert_eq!(greedy().token(&[-0.0, 0.0]), 0);
}

#[test]
fn draws_follow_the_softmax() {
    let logits: Vec<f32> = (0..20).map(|i| ((i * 7) % 20) as f32 * 0.2 - 1.0).collect();
    chi_square_fits(&logits, 1.0, |i| (i / 100, i));
    chi_square_fits(&logits, 0.5, |i| (i / 100, i));
}

#[test]
fn positions_of_one_seed_and_seeds_at_one_position_follow_it_too() {
    let logits: Vec<f32> = (0..20).map(|i| (i as f32 * 0.9).sin()).collect();
    chi_square_fits(&logits, 1.3, |i| (42, i));
    chi_square_fits(&logits, 1.3, |i| (i, 3));
}

/// 50,000 draws against the expected counts; 43.8 is the 0.999 quantile for 19 degrees of freedom. `stream` gives
/// seed and position of a draw.
fn chi_square_fits(logits: &[f32], temperature: f32, stream: impl Fn(u64) -> (u64, u64)) {
    const DRAWS: u64 = 50_000;
    let mut sampler = Sampler::new(logits.len());
    let mut counts = vec![0f64; logits.len()];
    for (seed, position) in (0..DRAWS).map(stream) {
        let params = SamplingParams { temperature, seed, ..Default::default() };
        let position = position as usize;
        let row = SampleRow { segment: 0, params: &params, position, prompt: &[], output: &[], mask: None };
        counts[sampler.draw(logits, &row).unwrap().id as usize] += 1.0;
    }
    let weights: Vec<f64> = logits.iter().map(|x| f64::from(x / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    let expected = weights.iter().map(|w| w / total * DRAWS as f64);
    let chi: f64 = expected.zip(&counts).map(|(want, n)| (n - want).powi(2) / want).sum();
    assert!(chi < 43.8, "chi-square {chi} at temperature {temperature}");
}

#[test]
fn seeds_draw_independently_of_each_other() {
    // Joint counts of neighbouring seeds over four equal tokens; 30.6 is the 0.99 quantile for 15 degrees.
    let logits = [0.0f32; 4];
    let mut counts = [0f64; 16];
    for position in 0..4000 {
        let at = |seed| {
            let mut case = Case::new(SamplingParams { seed, ..Default::default() });
            case.position = position;
            case.token(&logits) as usize
        };
        counts[at(1) * 4 + at(2)] += 1.0;
    }
    let chi: f64 = counts.iter().map(|n| (n - 250.0).powi(2) / 250.0).sum();
    assert!(chi < 30.6, "chi-square {chi}");
}

#[test]
fn a_filter_that_cuts_nothing_changes_no_draw() {
    let logits: Vec<f32> = (0..300).map(|i| (i as f32 * 1.7).sin() * 3.0).collect();
    for seed in 0..200 {
        let plain = SamplingParams { seed, ..Default::default() };
        let wide = SamplingParams { top_k: 300, ..plain.clone() };
        assert_eq!(Case::new(plain).token(&logits), Case::new(wide).token(&logits));
    }
}

#[test]
fn bias_moves_a_token_by_its_logit() {
    let mut case = greedy();
    case.params.logit_bias = vec![(0, 100.0), (1, -100.0)];
    assert_eq!(case.token(&[0.0, 50.0, 10.0]), 0);
}

#[test]
fn repetition_penalty_divides_positive_and_multiplies_negative_logits() {
    let mut case = greedy();
    case.params.repetition_penalty = 2.0;
    (case.prompt, case.output) = (vec![0, 0, 0], vec![2, 2]);
    assert_eq!(case.token(&[9.0, 4.6, 9.1]), 1, "9.1 / 2 = 4.55: counted once, in the prompt and in the output");
    assert_eq!(case.token(&[-1.0, -1.5, -3.0]), 1, "-1 * 2 = -2");
}

#[test]
fn presence_and_frequency_count_the_output_only() {
    let mut case = greedy();
    (case.prompt, case.output) = (vec![1; 9], vec![0, 0, 0, 2]);
    case.params.frequency_penalty = 1.0;
    assert_eq!(case.token(&[5.9, 3.0, 3.9]), 1, "5.9 - 3 and 3.9 - 1 are below 3");
    case.params.frequency_penalty = 0.0;
    case.params.presence_penalty = 1.0;
    assert_eq!(case.token(&[5.9, 3.0, 3.9]), 0, "5.9 - 1");
}

#[test]
fn scratch_of_one_row_does_not_leak_into_the_next() {
    let params = SamplingParams { frequency_penalty: 1.0, temperature: 0.0, ..Default::default() };
    let mut sampler = Sampler::new(3);
    for _ in 0..3 {
        let row = SampleRow { segment: 0, params: &params, position: 0, prompt: &[], output: &[0], mask: None };
        assert_eq!(sampler.draw(&[5.0, 4.5, 0.0], &row).unwrap().id, 1);
        let row = SampleRow { output: &[1], ..row };
        assert_eq!(sampler.draw(&[5.0, 4.5, 0.0], &row).unwrap().id, 0);
    }
}

#[test]
fn raw_logprobs_ignore_everything_that_shapes_the_draw() {
    let mut case = greedy();
    case.params.logit_bias = vec![(2, 100.0)];
    case.params.logprobs = Some(2);
    let token = case.draw(&[2.0, 1.0, 0.0]).unwrap();
    let lse = (2f64.exp() + 1f64.exp() + 1.0).ln();
    assert_eq!(token.id, 2);
    assert!((f64::from(token.logprob.unwrap()) + lse).abs() < 1e-6);
    assert_eq!(token.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1]);
    assert!((f64::from(token.top[0].1) - (2.0 - lse)).abs() < 1e-6);
    case.params.logprobs = Some(0);
    assert!(case.draw(&[2.0, 1.0, 0.0]).unwrap().top.is_empty());
}

#[test]
fn numbers_that_are_not_finite_are_refused_with_the_token() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = greedy().draw(&[0.0, value, 1.0]).unwrap_err();
        assert!(matches!(error, SampleError::NotFinite { token: 1, .. }), "{error}");
    }
    let mut case = greedy();
    case.params.repetition_penalty = 1e-38;
    case.prompt = vec![0];
    assert!(matches!(case.draw(&[1e30, 0.0]), Err(SampleError::NotFinite { token: 0, .. })));
}

#[test]
fn bad_masks_and_ids_are_refused() {
    let mut case = greedy();
    case.mask = Some(vec![0]);
    assert_eq!(case.draw(&[0.0, 1.0]), Err(SampleError::NothingAllowed { vocab: 2 }));
    case.mask = Some(vec![1, 1]);
    assert_eq!(case.draw(&[0.0, 1.0]), Err(SampleError::MaskLength { found: 2, expected: 1, vocab: 2 }));
    case.mask = None;
    case.params.logit_bias = vec![(2, 1.0)];
    assert!(matches!(case.draw(&[0.0, 1.0]), Err(SampleError::UnknownToken { token: 2, .. })));
    let mut case = greedy();
    case.params.presence_penalty = 1.0;
    case.output = vec![9];
    assert!(matches!(case.draw(&[0.0, 1.0]), Err(SampleError::UnknownToken { token: 9, .. })));
    assert_eq!(greedy().draw(&[]), Err(SampleError::NothingAllowed { vocab: 0 }));
}

proptest! {
    #[test]
    fn no_parameter_panics_and_a_drawn_token_is_allowed(
        logits in prop::collection::vec(prop_oneof![9 => -30f32..30.0, 1 => any::<f32>()], 1..100),
        (temperature, top_p, min_p) in (any_param(2.0), any_param(1.0), any_param(1.0)),
        top_k in 0u32..120,
        (presence_penalty, frequency_penalty, repetition_penalty) in (any_param(2.0), any_param(2.0), any_param(2.0)),
        seed: u64,
        mask in prop::option::of(prop::collection::vec(any::<u32>(), 1..5)),
        output in prop::collection::vec(0u32..100, 0..20),
    ) {
        let mut case = Case::new(SamplingParams {
            temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty, repetition_penalty, seed,
            logit_bias: vec![], logprobs: Some(3),
        });
        (case.output, case.mask) = (output, mask);
        if let Ok(token) = case.draw(&logits) {
            prop_assert!((token.id as usize) < logits.len());
            if let Some(mask) = &case.mask {
                prop_assert!(mask[token.id as usize / 32] >> (token.id % 32) & 1 == 1);
            }
        }
    }
}

fn any_param(most: f32) -> impl Strategy<Value = f32> {
    prop_oneof![8 => 0.0..most, 1 => Just(0.0), 1 => Just(1.0), 1 => any::<f32>()]
}
