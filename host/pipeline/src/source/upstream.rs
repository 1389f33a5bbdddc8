//! An upstream's answer, counted as it comes: a delta is a token until the upstream says what it counted itself.

use super::SourceEvent;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidegate_ledger::Tally;
use tidegate_types::{DeltaKind, Reject, Usage};
use tidegate_upstream::{Answer, UpstreamEvent};

/// One turn of an upstream.
pub(crate) struct UpstreamSource {
    answer: Answer,
    counted: Usage,
    tally: Option<Arc<Tally>>,
}

impl UpstreamSource {
    /// Counts into `tally`; the prompt is taken for `input` tokens.
    pub(crate) fn new(answer: Answer, input: u64, tally: Option<Arc<Tally>>) -> Self {
        if let Some(tally) = &tally {
            tally.add_input(input);
        }
        Self { answer, counted: Usage { input_tokens: input, ..Usage::default() }, tally }
    }

    /// The name that the upstream gives what answers.
    pub(crate) fn version(&self) -> Option<&str> {
        self.answer.model()
    }

    /// As it came, or as the upstream says.
    pub(crate) fn counted(&self) -> Usage {
        self.counted
    }

    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<SourceEvent, Reject>>> {
        self.answer.poll_next(cx).map(|event| Some(event?.map(|event| self.count(event))))
    }

    fn count(&mut self, event: UpstreamEvent) -> SourceEvent {
        match event {
            UpstreamEvent::Delta(delta) => {
                if !matches!(delta.kind, DeltaKind::Finish(_)) {
                    self.counted.output_tokens += 1;
                    self.tally.iter().for_each(|tally| tally.add_output(1));
                }
                SourceEvent::Delta(delta)
            }
            UpstreamEvent::Usage(usage) => {
                self.tally.iter().for_each(|tally| tally.correct(self.counted, usage));
                self.counted = usage;
                SourceEvent::Usage(usage)
            }
        }
    }
}
