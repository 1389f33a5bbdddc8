//! A bound on silence that costs a clock read per event, not a timer change: the timer runs to the end it had,
//! and only then looks whether something happened meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

pub(crate) struct IdleTimer {
    pub(crate) limit: Duration,
    last: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl IdleTimer {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, last: Instant::now(), sleep: None }
    }

    /// Bounds the silence since what happened last otherwise.
    pub(crate) fn set_limit(&mut self, limit: Duration) {
        if limit != self.limit {
            self.limit = limit;
            self.sleep = None;
        }
    }

    /// Something happened.
    pub(crate) fn touch(&mut self) {
        self.last = Instant::now();
    }

    /// Ready once nothing happened for the limit.
    pub(crate) fn poll_silent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(self.last + self.limit)));
        loop {
            ready!(sleep.as_mut().poll(cx));
            let due = self.last + self.limit;
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
    }
}
