//! Gumbel-max: the token with the largest `score + g` wins, g = -ln(-ln u) with u uniform for each token.
//!
//! The winner is distributed as softmax(score). Most tokens cannot win and are passed over by exact bounds on g,
//! before a logarithm, or before the random words themselves, is computed.

use super::philox::philox4x32;

/// The largest and the smallest g that [`Noise`] can give: 33 ln 2 and -ln(33 ln 2), rounded outwards.
const MOST: f64 = 22.874;
const LEAST: f64 = -3.131;

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

    /// Words of tokens `4 * quad .. 4 * quad + 4`.
    fn words(self, quad: u32) -> [u32; 4] {
        philox4x32(self.key, [self.position[0], self.position[1], quad, 0])
    }
}

fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// The race of one draw. Scores are at most 0, and the best token's is 0.
#[derive(Debug)]
pub(super) struct Race {
    noise: Noise,
    winner: Option<u32>,
    best: f64,
    /// exp(-best): a token whose v = 1 - u is not below it cannot win, since g <= -ln v and its score <= 0.
    limit: f64,
}

impl Race {
    pub(super) fn new(noise: Noise) -> Self {
        // Whoever has score 0 reaches LEAST, so nobody below that needs to run.
        Self { noise, winner: None, best: LEAST, limit: (-LEAST).exp() }
    }

    pub(super) fn winner(&self) -> Option<u32> {
        self.winner
    }

    /// Enters one token.
    pub(super) fn enter(&mut self, id: u32, score: f32) {
        if self.may_win(score) {
            let word = self.noise.words(id / 4)[id as usize % 4];
            self.run(id, score, word);
        }
    }

    /// Enters the whole vocabulary: one Philox call for four tokens.
    pub(super) fn enter_all(&mut self, logits: &[f32], score: impl Fn(f32) -> f32) {
        for (quad, logits) in (0u32..).zip(logits.chunks(4)) {
            if !logits.iter().any(|&x| self.may_win(score(x))) {
                continue;
            }
            let words = self.noise.words(quad);
            for ((id, &x), word) in (quad * 4..).zip(logits).zip(words) {
                self.run(id, score(x), word);
            }
        }
    }

    fn may_win(&self, score: f32) -> bool {
        f64::from(score) + MOST > self.best
    }

    fn run(&mut self, id: u32, score: f32, word: u32) {
        let v = (f64::from(word) + 0.5) / 4_294_967_296.0;
        if v >= self.limit || !self.may_win(score) {
            return;
        }
        let total = f64::from(score) - (-(-v).ln_1p()).ln();
        // Candidates come in no particular order, so a tie is settled by id and not by who came first.
        let tie = total == self.best && self.winner.is_some_and(|w| id < w);
        if total > self.best || tie {
            self.winner = Some(id);
            self.best = total;
            // A hair more than the bound, against the rounding of exp.
            self.limit = (-total).exp() * (1.0 + 1e-9);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Without any bound.
    fn plain(noise: Noise, scores: &[f32]) -> Option<u32> {
        let mut best: Option<(f64, u32)> = None;
        for (id, &score) in (0u32..).zip(scores) {
            let v = (f64::from(noise.words(id / 4)[id as usize % 4]) + 0.5) / 4_294_967_296.0;
            let total = f64::from(score) - (-(-v).ln_1p()).ln();
            if best.is_none_or(|(b, _)| total > b) {
                best = Some((total, id));
            }
        }
        best.map(|b| b.1)
    }

    proptest! {
        #[test]
        fn the_bounds_never_change_the_winner(
            mut scores in prop::collection::vec(prop_oneof![-40.0f32..=0.0, -2.0f32..=0.0], 1..300),
            at in any::<prop::sample::Index>(),
            seed: u64,
            position in 0u64..1_000_000,
        ) {
            let at = at.index(scores.len());
            scores[at] = 0.0;
            let noise = Noise::new(seed, position);
            let want = plain(noise, &scores);
            let mut all = Race::new(noise);
            all.enter_all(&scores, |x| x);
            prop_assert_eq!(all.winner(), want);
            let mut single = Race::new(noise);
            scores.iter().enumerate().rev().for_each(|(id, &s)| single.enter(id as u32, s));
            prop_assert_eq!(single.winner(), want);
        }
    }

    #[test]
    fn the_bounds_hold_at_the_ends_of_the_words() {
        let g = |word: u32| -(-(-(f64::from(word) + 0.5) / 4_294_967_296.0).ln_1p()).ln();
        assert!(g(0) < MOST && g(0) > MOST - 0.01, "{}", g(0));
        assert!(g(u32::MAX) > LEAST && g(u32::MAX) < LEAST + 0.01, "{}", g(u32::MAX));
    }
}
