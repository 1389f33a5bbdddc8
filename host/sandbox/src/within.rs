//! The wall time of a call. A guest answers at once as a rule: a timer is made, and the clock read, for one that does not.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;
use tokio::task::coop::{Unconstrained, unconstrained};
use tokio::time::{Sleep, sleep_until};

/// What came of waiting for a call.
pub(crate) struct Within<T> {
    /// `None` where time ran out.
    pub(crate) answer: Option<T>,
    /// It did not answer at once.
    pub(crate) waited: bool,
}

/// Waits for `call` until `until`. It is pinned where it was made: it is large, and moved for nothing.
pub(crate) async fn within<F: Future>(until: Instant, mut call: Pin<&mut F>) -> Within<F::Output> {
    // A call that uses up what the runtime lets a task do in one go must not keep the timer from being asked.
    let mut timer = pin!(None::<Unconstrained<Sleep>>);
    let answer = poll_fn(|cx| {
        if let Poll::Ready(answer) = call.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        if timer.is_none() {
            timer.set(Some(unconstrained(sleep_until(until.into()))));
        }
        timer.as_mut().as_pin_mut().map_or(Poll::Pending, |timer| timer.poll(cx).map(|()| None))
    })
    .await;
    Within { answer, waited: timer.is_some() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::task::coop::consume_budget;

    /// Without a runtime, where no timer can be made.
    #[test]
    fn a_call_that_answers_at_once_needs_no_timer() {
        let answers = pin!(async { 1 });
        let mut call = pin!(within(Instant::now(), answers));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(Within { answer, waited }) = call.as_mut().poll(&mut cx) else { panic!("it waits") };
        assert_eq!((answer, waited), (Some(1), false));
    }

    #[tokio::test]
    async fn a_call_that_does_not_answer_is_out_of_time_whatever_it_does() {
        let soon = || Instant::now() + Duration::from_millis(10);
        assert!(within(soon(), pin!(std::future::pending::<()>())).await.answer.is_none());
        let busy = async {
            loop {
                consume_budget().await;
            }
        };
        assert!(within(soon(), pin!(busy)).await.answer.is_none());
        let late = Instant::now() + Duration::from_secs(60);
        let Within { answer, waited } = within(late, pin!(tokio::task::yield_now())).await;
        assert!(answer.is_some() && waited);
    }
}
