//! What a call does for the index before it answers, and how much of its time that may take.

use tidegate_plugin_sdk::host::clock;

/// The part of a call's time after which nothing more is loaded or read: the rest is for the answer.
const TIME_FOR_INDEX: u64 = 2;

/// What a call has done for the index.
pub(crate) struct Work {
    /// When its time for that is over.
    until_ms: u64,
    /// Files that came from storage.
    pub(crate) loaded: usize,
    pub(crate) read_bytes: u64,
    /// What the index takes by now.
    pub(crate) index_bytes: usize,
}

impl Work {
    /// Of a call that came then, had so much time, and found an index of that size.
    pub(crate) fn new(since_ms: u64, deadline_ms: u32, index_bytes: usize) -> Self {
        Self { until_ms: since_ms + u64::from(deadline_ms) / TIME_FOR_INDEX, loaded: 0, read_bytes: 0, index_bytes }
    }

    /// Whether nothing was done yet.
    pub(crate) fn is_none(&self) -> bool {
        self.loaded == 0 && self.read_bytes == 0
    }

    /// Whether it may do something more: something in any case, so that there is an end.
    pub(crate) fn has_time(&self) -> bool {
        self.is_none() || clock::monotonic_ms() <= self.until_ms
    }
}
