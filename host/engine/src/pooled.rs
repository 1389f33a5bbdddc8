//! From the rows of a prompt, as they are computed piece by piece, to its one vector.
//!
//! A mean is summed in f64, row by row in the order of the positions, so that it is the same however the prompt was cut.

use tidegate_types::Pooling;

/// What there is of one sequence's vector so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pooled {
    /// Of the rows before `end`.
    sum: Vec<f64>,
    end: usize,
}

impl Pooled {
    /// Takes the kept rows of `num_tokens` positions from `start` on. A prompt that is computed again begins again.
    pub(crate) fn add(&mut self, pooling: Pooling, (start, num_tokens): (usize, usize), rows: &[Vec<f32>]) {
        if start == 0 || pooling == Pooling::LastToken {
            self.sum.clear();
        }
        self.end = start + num_tokens;
        for row in rows {
            self.sum.resize(row.len(), 0.0);
            self.sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        }
    }

    /// The vector; empty if no row was kept.
    pub(crate) fn vector(&self, pooling: Pooling) -> Vec<f32> {
        let count = match pooling {
            Pooling::LastToken => 1,
            Pooling::Mean => self.end,
        };
        self.sum.iter().map(|sum| (sum / count as f64) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_that_of_all_rows_and_begins_again_with_the_prompt() {
        let rows = |from: usize, to: usize| (from..to).map(|n| vec![n as f32, 0.5]).collect::<Vec<_>>();
        let mut pooled = Pooled::default();
        pooled.add(Pooling::Mean, (0, 3), &rows(0, 3));
        // Preempted.
        pooled.add(Pooling::Mean, (0, 2), &rows(0, 2));
        pooled.add(Pooling::Mean, (2, 3), &rows(2, 5));
        assert_eq!(pooled.vector(Pooling::Mean), [2.0, 0.5]);
    }

    #[test]
    fn of_the_last_token_there_is_one_row() {
        let mut pooled = Pooled::default();
        pooled.add(Pooling::LastToken, (0, 3), &[]);
        assert_eq!(pooled.vector(Pooling::LastToken), [0.0; 0]);
        pooled.add(Pooling::LastToken, (3, 2), &[vec![0.1, 7.0]]);
        assert_eq!(pooled.vector(Pooling::LastToken), [0.1, 7.0]);
    }
}
