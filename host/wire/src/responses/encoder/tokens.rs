//! Log-probabilities of the texts of a response. Deltas bring them; wherever a text is said again, so are they, while they are
//! no more than may be repeated there: each token has as many as a hundred times its own bytes.

use crate::logprobs;
use bytes::BytesMut;
use serde_json::Value;
use tidegate_types::TextLogprob;

/// Those of each text that has some.
#[derive(Default)]
pub(super) struct Tokens(Vec<OfText>);

struct OfText {
    item: usize,
    part: usize,
    tokens: Vec<Value>,
    bytes: usize,
}

impl Tokens {
    /// Adds those of a delta; gives the bytes that they take, written.
    pub(super) fn add(&mut self, item: usize, part: usize, new: &[TextLogprob]) -> usize {
        if new.is_empty() {
            return 0;
        }
        // By way of their text, so that numbers look as they do in deltas.
        let mut written = BytesMut::new();
        logprobs::tokens(&mut written, new);
        let Ok(mut values) = serde_json::from_slice(&written) else { return 0 };
        match self.0.last_mut().filter(|of| (of.item, of.part) == (item, part)) {
            Some(of) => {
                of.tokens.append(&mut values);
                of.bytes += written.len();
            }
            None => self.0.push(OfText { item, part, tokens: values, bytes: written.len() }),
        }
        written.len()
    }

    /// Those of a text; none where they have more than `most_bytes`.
    pub(super) fn of(&self, item: usize, part: usize, most_bytes: usize) -> Value {
        let found = self.0.iter().find(|of| (of.item, of.part) == (item, part) && of.bytes <= most_bytes);
        found.map(|of| of.tokens.clone()).unwrap_or_default().into()
    }

    /// Puts them into an item as callers see it, but for those of texts that have more than `most_bytes`.
    pub(super) fn show(&self, item: usize, most_bytes: usize, shown: &mut Value) {
        for of in self.0.iter().filter(|of| of.item == item && of.bytes <= most_bytes) {
            if let Some(part) = shown["content"].get_mut(of.part) {
                part["logprobs"] = of.tokens.clone().into();
            }
        }
    }
}
