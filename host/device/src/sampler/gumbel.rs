//! Gumbel-max: the token with the largest `score + g` wins, where g = -ln(-ln u) and u is uniform for each token.
//!
//! The winner is distributed as softmax(score). With v = 1 - u, g is at most -ln v, so a token beats the best so far
//! only if v < exp(score - best). Bounds on that, rounded towards keeping a token, settle nearly all of them with a
//! comparison of the random word, and many before the word is computed. They never change the winner.

use super::Scale;
use super::philox::{philox4x32, philox4x32_lanes};

/// The largest and the smallest g that a word can give: about 33 ln 2 and -ln(33 ln 2), rounded outwards.
const MOST: f64 = 22.874;
const LEAST: f64 = -3.131;
/// Tokens whose bounds are settled together: four Philox calls side by side.
const LANES: usize = 4;
const BLOCK: usize = 4 * LANES;
/// Bounds are held for scores from `-band - 1` to `-band`; below the last band there is one bound for all.
const BANDS: usize = 32;
const WORDS: f64 = 4_294_967_296.0;

/// The noise of one draw: a function of the token id. Words are shared out four to a Philox call: token `i`
/// takes word `i % 4` of counter (position, i / 4) under the key `seed`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    key: [u32; 2],
    position: [u32; 2],
}

impl Noise {
    pub(super) fn new(seed: u64, position: u64) -> Self {
        Self { key: halves(seed), position: halves(position) }
    }

    fn word(self, id: u32) -> u32 {
        philox4x32(self.key, [self.position[0], self.position[1], id / 4, 0])[id as usize % 4]
    }

    /// Words of the block of tokens from `first` on, a multiple of four.
    fn words(self, first: u32) -> [u32; BLOCK] {
        let quads = std::array::from_fn(|lane| first / 4 + lane as u32);
        let words = philox4x32_lanes::<LANES>(self.key, self.position, quads);
        std::array::from_fn(|i| words[i / 4][i % 4])
    }
}

fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// The race of one draw; it takes logits, of which the largest is `scale.max`.
#[derive(Debug)]
pub(super) struct Race {
    noise: Noise,
    scale: Scale,
    winner: Option<u32>,
    best: f64,
    /// A logit that is not above it cannot win with any word.
    cutoff: f32,
    /// By band of the score: a word that is not below it cannot win.
    limits: [u64; BANDS],
}

impl Race {
    pub(super) fn new(noise: Noise, scale: Scale) -> Self {
        let mut race = Self { noise, scale, winner: None, best: 0.0, cutoff: 0.0, limits: [0; BANDS] };
        // Whoever has score 0 reaches LEAST, so nobody below that needs to run.
        race.raise(LEAST);
        race
    }

    pub(super) fn scale(&self) -> Scale {
        self.scale
    }

    pub(super) fn winner(&self) -> Option<u32> {
        self.winner
    }

    /// Enters one token.
    pub(super) fn enter(&mut self, id: u32, logit: f32) {
        if logit > self.cutoff {
            self.run(id, logit, self.noise.word(id));
        }
    }

    /// Enters the whole vocabulary.
    pub(super) fn enter_all(&mut self, logits: &[f32]) {
        for (first, logits) in (0u32..).step_by(BLOCK).zip(logits.chunks(BLOCK)) {
            if !logits.iter().fold(false, |any, &x| any | (x > self.cutoff)) {
                continue;
            }
            let words = self.noise.words(first);
            for ((id, &logit), word) in (first..).zip(logits).zip(words) {
                if u64::from(word) < self.limits[0] && logit > self.cutoff {
                    self.run(id, logit, word);
                }
            }
        }
    }

    fn run(&mut self, id: u32, logit: f32, word: u32) {
        let score = self.scale.score(logit);
        // The cast saturates: a score of minus infinity lands in the last band.
        let band = ((-score) as usize).min(BANDS - 1);
        if u64::from(word) >= self.limits[band] {
            return;
        }
        let v = (f64::from(word) + 0.5) / WORDS;
        let total = f64::from(score) - (-(-v).ln_1p()).ln();
        // Candidates come in no particular order, so a tie is settled by id and not by who came first.
        let tie = total == self.best && self.winner.is_some_and(|w| id < w);
        if total > self.best || tie {
            self.winner = Some(id);
            self.raise(total);
        }
    }

    /// Takes a new best and draws the bounds from it, each a little wider than it need be.
    fn raise(&mut self, best: f64) {
        self.best = best;
        let reach = (best - MOST) * f64::from(self.scale.temperature) * (1.0 + 1e-6);
        let cutoff = f64::from(self.scale.max) + reach;
        self.cutoff = (cutoff - 1e-6 * (f64::from(self.scale.max).abs() + 1.0)) as f32;
        for (band, limit) in self.limits.iter_mut().enumerate() {
            let v = (-(band as f64) - best).exp() * (1.0 + 1e-9);
            *limit = (v * WORDS + 0.5) as u64 + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn g(word: u32) -> f64 {
        -(-(-(f64::from(word) + 0.5) / WORDS).ln_1p()).ln()
    }

    /// Without any bound.
    fn plain(noise: Noise, scale: Scale, logits: &[f32]) -> Option<u32> {
        let mut best: Option<(f64, u32)> = None;
        for (id, &logit) in (0u32..).zip(logits) {
            let total = f64::from(scale.score(logit)) + g(noise.word(id));
            if best.is_none_or(|(b, _)| total > b) {
                best = Some((total, id));
            }
        }
        best.map(|b| b.1)
    }

    proptest! {
        #[test]
        fn the_bounds_never_change_the_winner(
            offset in prop_oneof![Just(0.0f32), -1e4f32..1e4],
            temperature in prop_oneof![Just(1.0f32), 0.01f32..5.0],
            spread in prop_oneof![Just(0.0f32), Just(2.0), Just(40.0)],
            units in prop::collection::vec(0.0f32..=1.0, 1..300),
            seed: u64,
            position in 0u64..1_000_000,
        ) {
            let logits: Vec<f32> = units.iter().map(|x| offset - x * spread).collect();
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let (noise, scale) = (Noise::new(seed, position), Scale { max, temperature });
            let want = plain(noise, scale, &logits);
            let mut all = Race::new(noise, scale);
            all.enter_all(&logits);
            prop_assert_eq!(all.winner(), want);
            let mut single = Race::new(noise, scale);
            logits.iter().enumerate().rev().for_each(|(id, &x)| single.enter(id as u32, x));
            prop_assert_eq!(single.winner(), want);
        }

        #[test]
        fn a_block_of_words_is_the_words_of_its_tokens(seed: u64, position: u64, quad in 0u32..1_000_000) {
            let noise = Noise::new(seed, position);
            let single: Vec<u32> = (quad * 4..).take(BLOCK).map(|id| noise.word(id)).collect();
            prop_assert_eq!(&noise.words(quad * 4)[..], &single[..]);
        }
    }

    #[test]
    fn the_bounds_hold_at_the_ends_of_the_words() {
        assert!(g(0) < MOST && g(0) > MOST - 0.01, "{}", g(0));
        assert!(g(u32::MAX) > LEAST && g(u32::MAX) < LEAST + 0.01, "{}", g(u32::MAX));
    }

    #[test]
    fn forbidden_tokens_never_win() {
        let scale = Scale { max: 0.0, temperature: 1.0 };
        for position in 0..2000 {
            let mut race = Race::new(Noise::new(1, position), scale);
            race.enter_all(&[f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]);
            assert_eq!(race.winner(), Some(1));
        }
    }
}
