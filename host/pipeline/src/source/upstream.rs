//! An upstream's answer, counted as it comes until the upstream says what it counted itself: a delta, or a piece of a tool call, is
//! a token, and one that is longer than tokens are is as many as its text has usually.

use super::SourceEvent;
use crate::estimate::BYTES_PER_TOKEN;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tidegate_ledger::Tally;
use tidegate_types::{DeltaKind, Reject, Usage};
use tidegate_upstream::{Answer, UpstreamEvent};

/// One turn of an upstream.
pub(crate) struct UpstreamSource {
    answer: Answer,
    counted: Usage,
    tally: Option<Arc<Tally>>,
    /// Its tool calls come in pieces, which are counted.
    in_pieces: bool,
}

impl UpstreamSource {
    /// Counts into `tally`; the prompt is taken for `input` tokens.
    pub(crate) fn new(answer: Answer, input: u64, tally: Option<Arc<Tally>>) -> Self {
        if let Some(tally) = &tally {
            tally.add_input(input);
        }
        Self { answer, counted: Usage { input_tokens: input, ..Usage::default() }, tally, in_pieces: false }
    }

    /// The name that the upstream gives what answers.
    pub(crate) fn version(&self) -> Option<&str> {
        self.answer.model()
    }

    /// As it came, or as the upstream says: what is here already is counted, and of an answer in one piece that is all of it.
    pub(crate) fn counted(&mut self) -> Usage {
        while let Poll::Ready(Some(Ok(_))) = self.poll_next(&mut Context::from_waker(Waker::noop())) {}
        self.counted
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<SourceEvent, Reject>>> {
        loop {
            let Some(event) = ready!(self.answer.poll_next(cx)).transpose()? else { return Poll::Ready(None) };
            if let Some(event) = self.count(event) {
                return Poll::Ready(Some(Ok(event)));
            }
        }
    }

    /// Gives what is to be told of it.
    fn count(&mut self, event: UpstreamEvent) -> Option<SourceEvent> {
        match event {
            UpstreamEvent::Piece(bytes) => {
                self.in_pieces = true;
                self.generated(tokens_of(bytes));
                None
            }
            UpstreamEvent::Delta(delta) => {
                let was_counted = self.in_pieces && matches!(delta.kind, DeltaKind::ToolCall { .. });
                self.generated(if was_counted { 0 } else { tokens(&delta.kind) });
                Some(SourceEvent::Delta(delta))
            }
            UpstreamEvent::Usage(usage) => {
                self.tally.iter().for_each(|tally| tally.correct(self.counted, usage));
                self.counted = usage;
                Some(SourceEvent::Usage(usage))
            }
        }
    }

    fn generated(&mut self, tokens: u64) {
        self.counted.output_tokens += tokens;
        self.tally.iter().for_each(|tally| tally.add_output(tokens));
    }
}

/// A word that is a token is hardly ever longer.
const TOKEN_BYTES: usize = 32;

/// About how many tokens were generated for it.
fn tokens(kind: &DeltaKind) -> u64 {
    let bytes = match kind {
        DeltaKind::Text { text, .. } | DeltaKind::Reasoning(text) | DeltaKind::Refusal(text) => text.len(),
        DeltaKind::ToolCall { call, .. } => call.name.len() + call.arguments.len(),
        DeltaKind::Finish(_) => return 0,
    };
    tokens_of(bytes)
}

/// Of what comes at once.
fn tokens_of(bytes: usize) -> u64 {
    if bytes <= TOKEN_BYTES { 1 } else { bytes.div_ceil(BYTES_PER_TOKEN) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{FinishReason, ToolCall};

    #[test]
    fn an_answer_in_one_piece_is_no_single_token() {
        let text = |bytes: usize| DeltaKind::Text { text: "x".repeat(bytes), logprobs: Vec::new() };
        let call = |arguments: String| DeltaKind::ToolCall {
            index: 0,
            call: ToolCall { id: "c".into(), name: "f".into(), arguments },
        };
        let counted = [text(1), text(32), text(4000), DeltaKind::Reasoning("y".repeat(41)), call("{}".into())];
        assert_eq!(counted.map(|kind| tokens(&kind)), [1, 1, 1000, 11, 1]);
        assert_eq!(tokens(&call("z".repeat(399))), 100);
        assert_eq!(tokens(&DeltaKind::Finish(FinishReason::Stop)), 0);
    }
}
