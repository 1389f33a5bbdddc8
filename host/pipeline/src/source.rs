//! Where generated text comes from: the own engine's jobs, or an upstream's stream. Both give the same events.

mod choice;
mod engine;
mod upstream;

pub(crate) use engine::{EngineSource, EngineTurn, Reading};
pub(crate) use upstream::UpstreamSource;

use std::task::{Context, Poll};
use tidegate_types::{Delta, Reject, Usage};

/// What a turn's source says.
#[derive(Debug)]
pub(crate) enum SourceEvent {
    /// A part of an answer.
    Delta(Delta),
    /// What the turn cost so far; the last one counts.
    Usage(Usage),
}

/// One turn being generated. Dropping it stops the work.
pub(crate) enum Source {
    Engine(Box<EngineSource>),
    Upstream(Box<UpstreamSource>),
}

impl Source {
    /// The next event; `None` after each choice has finished.
    pub(crate) async fn next(&mut self) -> Option<Result<SourceEvent, Reject>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// An event that is there already.
    pub(crate) fn ready(&mut self) -> Option<Result<SourceEvent, Reject>> {
        match self.poll_next(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(event) => event,
            Poll::Pending => None,
        }
    }

    /// Whether an event is there, which stays. An upstream is asked after every verdict: nobody waits for this of one.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Engine(source) => source.poll_ready(cx),
            Self::Upstream(_) => Poll::Ready(()),
        }
    }

    /// What exactly answers, where an upstream says so.
    pub(crate) fn version(&self) -> Option<&str> {
        match self {
            Self::Engine(_) => None,
            Self::Upstream(source) => source.version(),
        }
    }

    /// Stops one choice: nothing more is generated for it.
    pub(crate) fn stop(&mut self, choice: u32) {
        if let Self::Engine(source) = self {
            source.stop(choice);
        }
    }

    /// What was counted so far, of a source that goes on though nobody wants more: an upstream cannot be told to stop one
    /// choice, and what it says after the last of them is paid for. An engine ends by itself.
    pub(crate) fn counted(&mut self) -> Option<Usage> {
        match self {
            Self::Engine(_) => None,
            Self::Upstream(source) => Some(source.counted()),
        }
    }

    /// As [`Self::next`].
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<SourceEvent, Reject>>> {
        match self {
            Self::Engine(source) => source.poll_next(cx),
            Self::Upstream(source) => source.poll_next(cx),
        }
    }
}
