//! What `/metrics` says of one model's servers.

use crate::failure::Trouble;
use metrics::{Counter, Gauge, counter, gauge};
use std::sync::OnceLock;

/// How an attempt ended, each in exactly one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With a complete answer.
    Answered,
    /// In the middle of an answer.
    Cut,
    /// Before anything of an answer.
    Failed(Trouble),
    /// Nobody wanted it any more.
    Left,
}

impl Ending {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Cut => "cut",
            Self::Left => "left",
            Self::Failed(trouble) => match trouble {
                Trouble::Unreachable => "unreachable",
                Trouble::Busy => "busy",
                Trouble::Overloaded => "overloaded",
                Trouble::Gateway => "gateway",
                Trouble::Broken => "broken",
                Trouble::Silent => "silent",
                Trouble::Late => "late",
                Trouble::Failed => "failed",
                Trouble::Misconfigured => "misconfigured",
                Trouble::Refused => "refused",
            },
        }
    }
}

/// The figures of one server. Looked up when they are first wanted, since the exporter starts after the config is read.
pub(crate) struct ServerFigures {
    model: String,
    origin: String,
    handles: OnceLock<Handles>,
}

struct Handles {
    answered: Counter,
    outstanding: Gauge,
    breaker: Gauge,
}

impl ServerFigures {
    pub(crate) fn new(model: &str, origin: &str) -> Self {
        Self { model: model.to_owned(), origin: origin.to_owned(), handles: OnceLock::new() }
    }

    /// An attempt begins.
    pub(crate) fn began(&self) {
        self.handles().outstanding.increment(1.0);
    }

    /// An attempt ends.
    pub(crate) fn ended(&self, ending: Ending) {
        self.handles().outstanding.decrement(1.0);
        match ending {
            Ending::Answered => self.handles().answered.increment(1),
            ending => self.attempts(ending).increment(1),
        }
    }

    /// The breaker's state has changed; it is closed until then.
    pub(crate) fn breaker(&self, figure: f64) {
        self.handles().breaker.set(figure);
    }

    fn attempts(&self, ending: Ending) -> Counter {
        counter!("tidegate_upstream_attempts_total", "model" => self.model.clone(), "upstream" => self.origin.clone(),
            "outcome" => ending.as_str())
    }

    fn handles(&self) -> &Handles {
        self.handles.get_or_init(|| {
            let labels = [("model", self.model.clone()), ("upstream", self.origin.clone())];
            Handles {
                answered: self.attempts(Ending::Answered),
                outstanding: gauge!("tidegate_upstream_outstanding", &labels),
                breaker: gauge!("tidegate_upstream_breaker_state", &labels),
            }
        })
    }
}

/// A request of `model` is sent again.
pub(crate) fn retried(model: &str) {
    counter!("tidegate_upstream_retries_total", "model" => model.to_owned()).increment(1);
}

/// A request of `model` would have been sent again, but for the budget.
pub(crate) fn budget_exhausted(model: &str) {
    counter!("tidegate_upstream_retry_budget_exhausted_total", "model" => model.to_owned()).increment(1);
}
