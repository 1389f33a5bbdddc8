//! Text of one event that is longer than what a guard is given at once: an upstream that does not stream, as where its caller
//! does not, says all of an answer at once, and a guard's time is that of one call.

use super::Conversation;
use crate::stages::echo::{PIECE_BYTES, pieces};
use crate::stages::reads::text_bytes;
use tidegate_types::{DeltaKind, Reject, TextLogprob};

impl Conversation {
    /// Whether guards are asked about it piece by piece.
    pub(super) fn is_cut(&self, kind: &DeltaKind) -> bool {
        text_bytes(kind) > PIECE_BYTES && !self.guards().is_empty()
    }

    /// As [`Self::say`], piece by piece; true when a guard halts the answer.
    pub(super) async fn say_in_pieces(&mut self, choice: u32, kind: DeltaKind) -> Result<bool, Reject> {
        for piece in cut(kind) {
            if self.say(choice, piece, Vec::new(), None).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn cut(kind: DeltaKind) -> Vec<DeltaKind> {
    match kind {
        DeltaKind::Text { text, logprobs } => with_tokens(pieces(&text), logprobs),
        DeltaKind::Reasoning(text) => pieces(&text).into_iter().map(DeltaKind::Reasoning).collect(),
        DeltaKind::Refusal(text) => pieces(&text).into_iter().map(DeltaKind::Refusal).collect(),
        DeltaKind::ToolCall { .. } | DeltaKind::Finish(_) => vec![kind],
    }
}

/// Each token goes with the piece in which it ends. The first one of the text is how that begins.
fn with_tokens(pieces: Vec<String>, logprobs: Vec<TextLogprob>) -> Vec<DeltaKind> {
    let begin = logprobs.iter().find_map(|token| token.end?.checked_sub(token.chosen.bytes.len() as u64));
    let (mut through, mut tokens) = (begin.unwrap_or_default(), logprobs.into_iter().peekable());
    let piece = |text: String| {
        through += text.len() as u64;
        let ends_here = |token: &TextLogprob| token.end.is_none_or(|end| end <= through);
        let logprobs = std::iter::from_fn(|| tokens.next_if(ends_here)).collect();
        DeltaKind::Text { text, logprobs }
    };
    pieces.into_iter().map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::TopLogprob;

    #[test]
    fn a_token_goes_with_the_piece_in_which_it_ends() {
        let (before, word) = (10, "abc");
        let text = word.repeat(PIECE_BYTES);
        let token = |i: usize| TextLogprob {
            chosen: TopLogprob { token: word.into(), logprob: -0.5, bytes: word.into() },
            top: Vec::new(),
            end: Some((before + (i + 1) * word.len()) as u64),
        };
        let pieces = cut(DeltaKind::Text { text: text.clone(), logprobs: (0..PIECE_BYTES).map(token).collect() });
        let (mut joined, mut tokens) = (String::new(), 0);
        for piece in pieces {
            let DeltaKind::Text { text, logprobs } = piece else { panic!("it is text") };
            assert!(text.len() <= PIECE_BYTES);
            joined.push_str(&text);
            tokens += logprobs.len();
            assert_eq!(tokens, joined.len() / word.len(), "all that end until here");
        }
        assert_eq!((joined, tokens), (text, PIECE_BYTES));
    }
}
