//! For how long a guard that is asked once keeps a stream back: from the stream's first word until its verdict is there, or the
//! request has ended. Nothing is told of one that is not asked. Guards that see a stream piece by piece: `ask_guard/watched.rs`.

use crate::stage::Stage;
use metrics::Histogram;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tidegate_trace as trace;
use tracing::Span;

/// When the first word of a stream was there; unset also where the client reads no stream.
pub(super) type FirstWord = Arc<OnceLock<Instant>>;

/// Kept until the guard's call has ended, however that ends.
#[derive(Debug)]
pub(super) struct KeptBack {
    holdback: Histogram,
    first_word: FirstWord,
    span: Span,
}

impl KeptBack {
    /// Nothing by one that did not load.
    pub(super) fn by(stage: &Stage, first_word: &FirstWord) -> Self {
        let first_word = if stage.plugin.is_ok() { Arc::clone(first_word) } else { FirstWord::default() };
        Self { holdback: stage.figures.holdback(&stage.name).clone(), first_word, span: Span::none() }
    }

    /// Its guard is not asked: it is left out, or one before it has ended the answer.
    pub(super) fn not_asked(mut self) {
        self.first_word = FirstWord::default();
    }

    /// Told in the span of the call that is made, too.
    pub(super) fn told_here(mut self) -> Self {
        self.span = Span::current();
        self
    }
}

impl Drop for KeptBack {
    fn drop(&mut self) {
        if let Some(came) = self.first_word.get() {
            let held = came.elapsed();
            self.holdback.record(held);
            self.span.record("held_ms", trace::whole(held.as_millis()));
        }
    }
}
