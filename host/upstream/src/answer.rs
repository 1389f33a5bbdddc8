//! An answer of one of a model's servers. Until its first delta, or the first piece of a tool call, it can begin anew at another;
//! behind that a failure is the answer's end: what was said cannot be taken back, and what was generated is billed. What is counted
//! before it leaves with it.

use crate::attempt::Attempt;
use crate::failure::Failed;
use crate::retry::Run;
use crate::stream::{UpstreamEvent, UpstreamStream};
use crate::upstream::Upstream;
use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidegate_types::{Chat, Reject, RequestId, Retention, Usage};

/// What is needed to ask.
pub(crate) struct Asking {
    pub(crate) run: Run,
    pub(crate) chat: Arc<Chat>,
    pub(crate) sending: Sending,
}

/// How a chat is sent.
#[derive(Clone, Debug)]
pub struct Sending {
    /// Names the request.
    pub request_id: RequestId,
    /// Gateways that it has come through, this one among them.
    pub hops: u8,
    /// Whether what servers say of failures, which may repeat what they were asked, may be logged.
    pub retention: Retention,
}

impl Sending {
    /// The server, as it may be heard for this request.
    pub(crate) fn to<'a>(&self, upstream: &'a Upstream) -> Cow<'a, Upstream> {
        match self.retention {
            Retention::Kept => Cow::Borrowed(upstream),
            Retention::Nothing => Cow::Owned(upstream.discreet()),
        }
    }
}

impl Asking {
    /// Asks until a server has begun an answer.
    pub(crate) async fn begin(mut self) -> Result<Answer, Reject> {
        loop {
            let attempt = self.run.next().await?;
            match self.run.bounded(&attempt, Some(self.run.longest_start()), self.send(&attempt)).await {
                Ok(stream) => return Ok(Answer(State::begun(stream, attempt, self))),
                Err(failed) => self.run.failed(attempt, failed),
            }
        }
    }

    async fn send(&self, attempt: &Attempt) -> Result<Box<UpstreamStream>, Failed> {
        let upstream = self.sending.to(attempt.upstream());
        let Sending { request_id, hops, .. } = &self.sending;
        upstream.begin(&self.chat, request_id, *hops, self.run.attempts()).await
    }
}

/// One answer being read. Ends with `None` only when every choice has finished; anything else is an error.
/// Dropping it closes the connection.
pub struct Answer(State);

enum State {
    Begun {
        stream: Box<UpstreamStream>,
        attempt: Attempt,
        /// Until something of the answer has come.
        asking: Option<Box<Asking>>,
        early: Early,
    },
    Asking(Pin<Box<dyn Future<Output = Result<Answer, Reject>> + Send>>),
    Over {
        model: Option<String>,
    },
}

/// What has come and is not told yet.
#[derive(Default)]
struct Early {
    /// Counted before anything of the answer; the last figure is the one that counts.
    usage: Option<Usage>,
    /// The first event of the answer, while that is told.
    first: Option<UpstreamEvent>,
}

impl Early {
    /// What is told now, where `event` has come: what was counted before it stands first.
    fn ordered(&mut self, event: UpstreamEvent) -> UpstreamEvent {
        match self.usage.take() {
            Some(usage) => {
                self.first = Some(event);
                UpstreamEvent::Usage(usage)
            }
            None => event,
        }
    }
}

impl State {
    fn begun(stream: Box<UpstreamStream>, attempt: Attempt, asking: Asking) -> Self {
        Self::Begun { stream, attempt, asking: Some(Box::new(asking)), early: Early::default() }
    }
}

impl Answer {
    /// What the upstream calls the model that answers, once it has said something.
    pub fn model(&self) -> Option<&str> {
        match &self.0 {
            State::Begun { stream, .. } => stream.model(),
            State::Asking(_) => None,
            State::Over { model } => model.as_deref(),
        }
    }

    /// The next event; an error is the last.
    pub async fn next(&mut self) -> Option<Result<UpstreamEvent, Reject>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Self::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<UpstreamEvent, Reject>>> {
        loop {
            match &mut self.0 {
                State::Over { .. } => return Poll::Ready(None),
                State::Asking(begun) => match ready!(begun.as_mut().poll(cx)) {
                    Ok(answer) => *self = answer,
                    Err(reject) => return Poll::Ready(Some(Err(self.end(reject)))),
                },
                State::Begun { early: Early { first: first @ Some(_), .. }, .. } => {
                    return Poll::Ready(first.take().map(Ok));
                }
                State::Begun { stream, attempt, asking, early } => match ready!(stream.poll_event(cx)) {
                    Some(Ok(UpstreamEvent::Usage(usage))) if asking.is_some() => early.usage = Some(usage),
                    Some(Ok(event)) => {
                        *asking = None;
                        attempt.hear();
                        return Poll::Ready(Some(Ok(early.ordered(event))));
                    }
                    Some(Err(failed)) => {
                        if let Some(reject) = self.fail(failed) {
                            return Poll::Ready(Some(Err(reject)));
                        }
                    }
                    None => self.complete(),
                },
            }
        }
    }

    fn over(&mut self) -> State {
        let model = self.model().map(str::to_owned);
        std::mem::replace(&mut self.0, State::Over { model })
    }

    fn end(&mut self, reject: Reject) -> Reject {
        self.over();
        reject
    }

    fn complete(&mut self) {
        if let State::Begun { attempt, .. } = self.over() {
            attempt.answered(());
        }
    }

    /// Begins anew where nothing was said yet; gives the failure back where something was.
    fn fail(&mut self, failed: Failed) -> Option<Reject> {
        match self.over() {
            State::Begun { attempt, asking: Some(mut asking), .. } => {
                asking.run.failed(attempt, failed);
                self.0 = State::Asking(Box::pin(asking.begin()));
                None
            }
            State::Begun { attempt, .. } => {
                attempt.fail(failed.trouble);
                Some(*failed.reject)
            }
            State::Asking(_) | State::Over { .. } => Some(*failed.reject),
        }
    }
}
