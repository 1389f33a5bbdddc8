//! A reply is a generator: a future that emits events into a small queue, polled by whoever reads it.
//!
//! There is no task and no channel between generation and connection, so an event costs no hop, a slow reader
//! holds back its own future only, and dropping the reply drops the work with everything it holds.

use crate::account::Record;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tidegate_types::{Allowances, Citation, Delta, Reject, Usage};

/// What a reader of a reply gets.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyEvent {
    /// Part of an answer.
    Delta(Delta),
    /// What all turns cost; once, after the last delta.
    Usage(Usage),
    /// A guard replaced or withheld the answer, and no passage is cited for what leaves in its place; before any delta.
    Uncited,
}

/// Where the work puts its events.
#[derive(Clone, Default)]
pub(crate) struct Emitter {
    queue: Arc<Mutex<VecDeque<ReplyEvent>>>,
}

impl Emitter {
    /// Hands an event to the reader and lets it run. The reader polls again once it has taken the event, so
    /// the queue holds no more than one event of each choice.
    pub(crate) async fn emit(&self, event: ReplyEvent) {
        self.lock().push_back(event);
        let mut yielded = false;
        std::future::poll_fn(|_| if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending })
            .await;
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn pop(&self) -> Option<ReplyEvent> {
        self.lock().pop_front()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<ReplyEvent>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Work = Pin<Box<dyn Future<Output = Result<(), Reject>> + Send>>;

/// An answer being made. Dropping it cancels the work and frees its blocks.
pub struct Reply {
    /// The model that answers, as `model` in the response.
    pub model: String,
    /// Extra response headers.
    pub headers: Vec<(&'static str, String)>,
    /// What is left to a limited caller.
    pub allowances: Allowances,
    /// Of the passages that the model was given.
    pub citations: Vec<Citation>,
    emitter: Emitter,
    work: Option<Work>,
    outcome: Option<Result<(), Reject>>,
    record: Record,
}

impl Reply {
    pub(crate) fn new<F>(model: String, record: Record, emitter: Emitter, allowances: Allowances, work: F) -> Self
    where
        F: Future<Output = Result<(), Reject>> + Send + 'static,
    {
        let (headers, citations, work) = (Vec::new(), Vec::new(), Some(Box::pin(work) as Work));
        Self { model, headers, allowances, citations, emitter, work, outcome: None, record }
    }

    /// The next event; an error is the last.
    pub async fn next(&mut self) -> Option<Result<ReplyEvent, Reject>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Self::next`], for bodies that are polled by hyper.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ReplyEvent, Reject>>> {
        loop {
            if let Some(event) = self.emitter.pop() {
                self.record.note(&event);
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(outcome) = self.outcome.take() {
                return Poll::Ready(self.end(outcome));
            }
            let Some(work) = &mut self.work else {
                return Poll::Ready(None);
            };
            match work.as_mut().poll(cx) {
                Poll::Ready(outcome) => {
                    self.work = None;
                    self.outcome = Some(outcome);
                }
                Poll::Pending if self.emitter.is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    }

    /// Ends it unread, with this.
    pub(crate) fn fail(mut self, reject: &Reject) {
        // What was made and not read yet is counted where the work ends.
        self.work = None;
        self.record.failed(reject);
    }

    fn end(&mut self, outcome: Result<(), Reject>) -> Option<Result<ReplyEvent, Reject>> {
        match outcome {
            Ok(()) => {
                self.record.ended();
                None
            }
            Err(reject) => {
                self.record.failed(&reject);
                Some(Err(reject))
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::context::RequestContext;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use std::time::Instant;
    use tidegate_ledger::Tally;
    use tidegate_types::{Caller, Fault, RequestId, Retention};

    /// As an engine does for a job that is dropped with tokens that nobody has read.
    struct Unread(Arc<Tally>);

    impl Drop for Unread {
        fn drop(&mut self) {
            self.0.add_output(5);
        }
    }

    pub(crate) fn context() -> RequestContext {
        RequestContext {
            request_id: RequestId::new("r"),
            generation: "g".into(),
            began: Instant::now(),
            caller: Arc::new(Caller::local()),
            retention: Retention::Kept,
            hops: 0,
            history: None,
            notebook: None,
            aborted: Arc::default(),
        }
    }

    fn reply(model: &str, cx: &RequestContext) -> Reply {
        let tally = Arc::<Tally>::default();
        let record = Record::new(cx, model.into(), false, &tally);
        let unread = Unread(tally);
        Reply::new(model.into(), record, Emitter::default(), Allowances::default(), async move {
            let _unread = unread;
            std::future::pending().await
        })
    }

    #[test]
    fn an_answer_that_is_ended_unread_is_counted_with_what_was_made_of_it() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let figures = recorder.handle();
        let (broken, cx) = (Reject::internal(Fault::Operator, "it broke"), context());
        metrics::with_local_recorder(&recorder, || {
            reply("is-failed", &cx).fail(&broken);
            // Nobody says why.
            drop(reply("is-dropped", &cx));
            cx.aborted.set(broken).unwrap();
            drop(reply("is-aborted", &cx));
        });
        let figures = figures.render();
        for (model, outcome) in [("is-failed", "failed"), ("is-dropped", "client-gone"), ("is-aborted", "failed")] {
            let labels = format!("model=\"{model}\",tenant=\"local\",class=\"standard\"");
            let ended = format!("tidegate_requests_total{{{labels},outcome=\"{outcome}\"}} 1");
            let tokens = format!("tidegate_output_tokens_total{{{labels}}} 5");
            assert!(figures.contains(&ended) && figures.contains(&tokens), "{model}: {figures}");
        }
    }
}
