//! What makes a decoder a model that gives labels (transformers' `...ForSequenceClassification`): a row of `score.weight`
//! for each label, on the vector of a text's last token.
//!
//! A backend makes that vector as it does for any model of vectors; the rows are few and are applied here, on the host.
//! Logits become scores as by transformers' `TextClassificationPipeline`. Invariant: a score is a number from 0 to 1; where
//! there is none there is no label. Read next: `classifier/read.rs`.

mod read;

use tidegate_device::reference::ops::dot;

/// How logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Of labels of which one is right: the scores of a text add up to 1.
    Softmax,
    /// Each label by itself.
    Sigmoid,
}

/// The labels of a model and the rows that give their scores.
#[derive(Clone, Debug, PartialEq)]
pub struct Classifier {
    labels: Vec<String>,
    /// `[labels, hidden]`, all of them finite.
    rows: Vec<f32>,
    scoring: Scoring,
    padding: Option<u32>,
}

impl Classifier {
    /// The labels by their ids.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Of a text's tokens those up to the one whose vector counts: the last that is no padding, which some tokenizers put
    /// behind every text. What comes after it cannot change that vector.
    pub fn without_padding<'a>(&self, tokens: &'a [u32]) -> &'a [u32] {
        match tokens.iter().rposition(|token| Some(*token) != self.padding) {
            Some(last) => &tokens[..=last],
            None => &tokens[..tokens.len().min(1)],
        }
    }

    /// A score for each label, by its id; `None` if `vector` is not one of finite numbers, as many as a row has.
    pub fn scores(&self, vector: &[f32]) -> Option<Vec<f32>> {
        let is_whole = vector.len() * self.labels.len() == self.rows.len() && vector.iter().all(|x| x.is_finite());
        if !is_whole || vector.is_empty() {
            return None;
        }
        let logits: Vec<f64> = self.rows.chunks_exact(vector.len()).map(|row| dot(row, vector)).collect();
        Some(match self.scoring {
            Scoring::Softmax => softmax(&logits),
            Scoring::Sigmoid => logits.iter().map(|logit| (1.0 / (1.0 + (-logit).exp())) as f32).collect(),
        })
    }
}

fn softmax(logits: &[f64]) -> Vec<f32> {
    let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let parts: Vec<f64> = logits.iter().map(|logit| (logit - highest).exp()).collect();
    let sum: f64 = parts.iter().sum();
    parts.iter().map(|part| (part / sum) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classifier(scoring: Scoring, rows: &[f32], padding: Option<u32>) -> Classifier {
        let labels = (0..rows.len() / 2).map(|id| format!("LABEL_{id}")).collect();
        Classifier { labels, rows: rows.to_vec(), scoring, padding }
    }

    #[test]
    fn scores_are_from_0_to_1_however_large_the_logits() {
        let scores = |scoring, rows: &[f32]| classifier(scoring, rows, None).scores(&[1.0, 2.0]).unwrap();
        assert_eq!(scores(Scoring::Sigmoid, &[0.0, 0.0, 2.0, -1.0, 1e38, 1e38, -1e38, -1e38]), [0.5, 0.5, 1.0, 0.0]);
        assert_eq!(scores(Scoring::Softmax, &[1.0, 0.0, 0.0, 0.5]), [0.5, 0.5]);
        assert_eq!(scores(Scoring::Softmax, &[3e38, 3e38, -3e38, 0.0, 3e38, 3e38]), [0.5, 0.0, 0.5]);
        let [a, b] = scores(Scoring::Softmax, &[1.0, 0.0, 2.0, 0.0])[..] else { panic!() };
        let e = std::f32::consts::E;
        assert!((a - 1.0 / (1.0 + e)).abs() < 1e-7 && (a + b - 1.0).abs() < 1e-7, "{a} and {b}");
    }

    #[test]
    fn what_is_no_vector_has_no_scores() {
        let classifier = classifier(Scoring::Sigmoid, &[1.0, 0.0, 0.0, 1.0], None);
        for vector in [&[][..], &[1.0], &[1.0, 2.0, 3.0], &[f32::NAN, 1.0], &[1.0, f32::INFINITY]] {
            assert_eq!(classifier.scores(vector), None, "{vector:?}");
        }
    }

    #[test]
    fn a_text_is_read_up_to_the_last_token_that_is_no_padding() {
        let read =
            |padding, tokens: &[u32]| classifier(Scoring::Sigmoid, &[], padding).without_padding(tokens).to_vec();
        assert_eq!(read(Some(9), &[1, 9, 2, 9, 9]), [1, 9, 2]);
        assert_eq!(read(Some(9), &[9, 9]), [9], "transformers takes the first where there is nothing else");
        assert_eq!(read(None, &[1, 9]), [1, 9]);
        assert_eq!(read(Some(9), &[]), [0; 0]);
    }
}
