//! For how long a guard that is asked once keeps a stream back: from the stream's first word until its verdict is there, or the
//! request has ended. Guards that see a stream piece by piece: `ask_guard/watched.rs`.

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
    pub(super) fn by(stage: &Stage, first_word: &FirstWord) -> Self {
        let (holdback, first_word) = (stage.figures.holdback(&stage.name).clone(), Arc::clone(first_word));
        Self { holdback, first_word, span: Span::none() }
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
