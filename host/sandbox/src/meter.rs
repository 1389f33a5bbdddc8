//! CPU time of one call: what the kernel charged the guest's thread while the guest had it. That clock costs a call of
//! the kernel, so it is read only where an epoch ends while the guest runs, where the guest gets its thread back after it
//! has yielded there, before and after a wait for the host, and where the guest ends on its caller's stack to be entered again
//! ([`EnterAgain`]); a call that is over before reads none. Of one stretch, from a call's begin to the first of these, the wall
//! time counts, as far as it is that of a look ([`LONGEST_LOOK`]) and no more than half of the limit, for who lacked a processor
//! has used none; where it ends with a wait for the host it is free. What others do while it yields is theirs, but for
//! [`SWITCH`]; what the host does for it is the guest's until that waits for the first time, or all of it
//! ([`CpuMeter::working`]).

use crate::ticker::{Clock, LONGEST_LOOK, Paused, TICK};
use cpu_time::ThreadTime;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use wasmtime::UpdateDeadline;

/// The most that counts of a yield: that is what leaving and coming back takes. It would add up: a long call yields often.
const SWITCH: Duration = Duration::from_micros(50);

/// CPU time of one call, and what is left of it.
pub(crate) struct CpuMeter {
    /// When the call began, as long as no stretch of it was counted.
    began: Option<Instant>,
    used: Duration,
    limit: Duration,
    waited: bool,
    /// The guest is on its caller's stack: it cannot yield.
    direct: bool,
    /// What the thread's clock said there when an epoch first ended.
    seen: Option<Duration>,
    since: Arc<Since>,
    clock: Clock,
}

/// What the thread's clock said when the guest got the thread. Shared with the future in which the guest yields.
#[derive(Default)]
struct Since(AtomicU64);

/// The value of [`Since`] where nobody looked at the clock: a thread that runs has used some time.
const UNKNOWN: u64 = 0;

/// The error with which a guest ends that used up its CPU time.
#[derive(Debug, thiserror::Error)]
#[error("the CPU limit is used up")]
pub(crate) struct CpuSpent;

/// The error with which a guest ends on its caller's stack that is to be entered again on one of its own: it takes so long that
/// others must have the thread meanwhile, or does what cannot be undone.
#[derive(Debug, thiserror::Error)]
#[error("it is entered again, on a stack of its own")]
pub(crate) enum EnterAgain {
    TakesLong,
    Acts,
}

impl CpuMeter {
    /// Without any time.
    pub(crate) fn new(clock: Clock) -> Self {
        let (used, limit) = (Duration::ZERO, Duration::ZERO);
        Self { began: None, used, limit, waited: false, direct: false, seen: None, since: Arc::default(), clock }
    }

    /// Starts a call at `now` with this much time.
    pub(crate) fn restart(&mut self, limit: Duration, now: Instant) {
        (self.began, self.used, self.limit) = (Some(now), Duration::ZERO, limit);
        (self.waited, self.direct, self.seen) = (false, false, None);
        self.since.forget();
    }

    /// The call that was started enters the guest on its caller's stack.
    pub(crate) fn enter_directly(&mut self) {
        self.direct = true;
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    /// The call that was started goes on with one that has used so much.
    pub(crate) fn go_on_from(&mut self, used: Duration) {
        self.used = used;
    }

    /// The guest does what cannot be undone.
    pub(crate) fn act(&self) -> Result<(), EnterAgain> {
        if self.direct { Err(EnterAgain::Acts) } else { Ok(()) }
    }

    /// An epoch ended while the guest ran, or before it ran again: counts what it has used, and lets other tasks have the
    /// thread, or ends it where it cannot and takes long.
    pub(crate) fn tick(&mut self) -> wasmtime::Result<UpdateDeadline> {
        let now = thread_time();
        let has_waited = std::mem::take(&mut self.waited);
        self.count_first();
        let ran = self.since.passed(now, if has_waited { Duration::ZERO } else { TICK });
        self.used += ran;
        if self.used >= self.limit {
            return Err(CpuSpent.into());
        }
        if self.direct {
            return self.tick_directly(now);
        }
        if has_waited && ran < TICK {
            // The epochs passed while the guest waited for the host: others had the thread then.
            self.since.note(now);
            return Ok(UpdateDeadline::Continue(1));
        }
        Ok(UpdateDeadline::YieldCustom(1, self.yielding(now)))
    }

    /// Ends what takes long. By the thread's clock, from the first tick on: who lacks a processor takes no longer for it.
    fn tick_directly(&mut self, now: Duration) -> wasmtime::Result<UpdateDeadline> {
        let seen = *self.seen.get_or_insert(now);
        let ran = if now.is_zero() { TICK } else { now.saturating_sub(seen) };
        self.since.note(now);
        if ran < TICK { Ok(UpdateDeadline::Continue(1)) } else { Err(EnterAgain::TakesLong.into()) }
    }

    /// Counts the stretch from the call's begin to now, where it was not.
    fn count_first(&mut self) {
        let until_now = |began: Instant| began.elapsed().min(LONGEST_LOOK).min(self.limit / 2);
        self.used += self.began.take().map_or(Duration::ZERO, until_now);
    }

    /// The guest has ended on its caller's stack: all that it has used.
    pub(crate) fn end_directly(&mut self) -> Duration {
        self.count_first();
        self.used + self.since.passed(thread_time(), Duration::ZERO)
    }

    /// What of the call's time was counted so far.
    pub(crate) fn used(&self) -> Duration {
        self.used
    }

    fn yielding(&self, left: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let since = Arc::clone(&self.since);
        Box::pin(async move {
            tokio::task::yield_now().await;
            let now = thread_time();
            // Another thread's clock may say anything.
            since.note(now.saturating_sub(now.saturating_sub(left).min(SWITCH)));
        })
    }

    /// Awaits a host function's work. Time in which the guest does not run is not counted; what it used before is counted
    /// here, or a guest that waits more often than epochs end would use none.
    pub(crate) async fn waiting<F: Future>(&mut self, work: F) -> F::Output {
        let mut work = std::pin::pin!(work);
        let mut waits = None;
        let output = std::future::poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            if polled.is_pending() && waits.is_none() {
                self.leave();
                waits = Some(self.pause());
            }
            polled
        })
        .await;
        if let Some(paused) = waits {
            drop(paused);
            // Its thread may be another.
            self.since.note(thread_time());
        }
        output
    }

    /// Awaits work of the host that takes the processor and lets others have the thread between its pieces: all of them are the
    /// guest's, or it would do by asking what it may not do itself. Ends it where the guest has no time left for another piece.
    pub(crate) async fn working<F: Future>(&mut self, work: F) -> Result<F::Output, CpuSpent> {
        let mut work = std::pin::pin!(work);
        let mut has_left = false;
        std::future::poll_fn(|context| {
            if std::mem::take(&mut has_left) {
                self.since.note(thread_time());
            }
            let polled = work.as_mut().poll(context);
            if polled.is_pending() {
                self.leave();
                has_left = true;
                if self.used >= self.limit {
                    return Poll::Ready(Err(CpuSpent));
                }
            }
            polled.map(Ok)
        })
        .await
    }

    /// No epoch has to end for a guest that waits, but where it could be over its limit before it is seen to run again.
    fn pause(&self) -> Option<Paused> {
        let left = self.limit.saturating_sub(self.used);
        (left > self.clock.longest_look()).then(|| self.clock.pause())
    }

    /// The guest leaves its thread to others.
    fn leave(&mut self) {
        self.began = None;
        self.used += self.since.passed(thread_time(), Duration::ZERO);
        self.since.forget();
        self.waited = true;
    }
}

impl Since {
    fn note(&self, then: Duration) {
        self.0.store(then.as_nanos() as u64, Ordering::Relaxed);
    }

    fn forget(&self) {
        self.0.store(UNKNOWN, Ordering::Relaxed);
    }

    /// CPU time from then to now; `unknown` where the kernel does not say, nothing where nobody looked at the clock then.
    fn passed(&self, now: Duration, unknown: Duration) -> Duration {
        match (self.0.load(Ordering::Relaxed), now) {
            (_, Duration::ZERO) => unknown,
            (UNKNOWN, _) => Duration::ZERO,
            (then, now) => now.saturating_sub(Duration::from_nanos(then)),
        }
    }
}

/// What this thread has used so far; 0 where the kernel does not say.
fn thread_time() -> Duration {
    ThreadTime::try_now().map_or(Duration::ZERO, |time| time.as_duration())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticker::tests::{seen, still};
    use futures_util::poll;
    use std::pin::pin;

    /// An epoch ends, and what the guest does then is done; says whether it may go on.
    async fn goes_on(meter: &mut CpuMeter) -> bool {
        match meter.tick() {
            Ok(UpdateDeadline::YieldCustom(_, yielding)) => yielding.await,
            Ok(_) => {}
            Err(_) => return false,
        }
        true
    }

    /// What is spun here is long: a kernel may charge a thread what others had of its processor, which is to make no difference.
    fn spin(time: Duration) {
        let started = ThreadTime::now();
        while started.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    fn metered(limit: Duration) -> CpuMeter {
        let mut meter = CpuMeter::new(still());
        meter.restart(limit, Instant::now());
        meter
    }

    #[tokio::test]
    async fn what_the_thread_did_is_counted_and_not_how_many_epochs_that_took() {
        let mut meter = metered(Duration::from_millis(400));
        for _ in 0..100 {
            assert!(goes_on(&mut meter).await, "epochs alone cost nothing");
        }
        spin(Duration::from_millis(400));
        assert!(!goes_on(&mut meter).await, "one epoch, whose end came late");
        meter.restart(Duration::from_millis(400), Instant::now());
        assert!(goes_on(&mut meter).await, "a call has its own");
    }

    #[tokio::test]
    async fn what_passes_until_somebody_looks_counts_and_no_more_than_a_look_takes() {
        let begun = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        let mut meter = CpuMeter::new(still());
        for (limit, counted) in [(4, LONGEST_LOOK), (1, LONGEST_LOOK / 2)] {
            meter.restart(LONGEST_LOOK * limit, begun);
            assert!(goes_on(&mut meter).await, "it may have lacked a processor");
            assert_eq!(meter.used(), counted);
        }
        meter.restart(LONGEST_LOOK, begun);
        wait(&mut meter).await;
        assert!(goes_on(&mut meter).await && meter.used() < LONGEST_LOOK / 2, "it waited for others");
    }

    #[tokio::test]
    async fn a_guest_on_its_callers_stack_ends_where_it_takes_long_and_where_it_acts_and_goes_on_with_what_it_has_used()
    {
        let mut meter = metered(Duration::from_millis(400));
        assert!(meter.act().is_ok());
        meter.enter_directly();
        assert!(meter.act().is_err());
        spin(Duration::from_millis(20));
        assert!(meter.end_directly() >= LONGEST_LOOK, "nobody has looked yet");
        // A kernel may charge it what others have meanwhile.
        let lacks_a_processor = |meter: &mut CpuMeter| {
            meter.restart(Duration::from_millis(400), Instant::now());
            meter.enter_directly();
            assert!(matches!(meter.tick(), Ok(UpdateDeadline::Continue(1))));
            std::thread::sleep(Duration::from_millis(5));
            matches!(meter.tick(), Ok(UpdateDeadline::Continue(1)))
        };
        assert!((0..20).any(|_| lacks_a_processor(&mut meter)));
        spin(Duration::from_millis(300));
        assert!(meter.tick().err().is_some_and(|error| error.is::<EnterAgain>()));
        let used = meter.end_directly();
        assert!(used >= Duration::from_millis(300), "{used:?}");
        meter.restart(Duration::from_millis(400), Instant::now());
        meter.go_on_from(used);
        assert!(meter.act().is_ok() && goes_on(&mut meter).await);
        spin(Duration::from_millis(100));
        assert!(!goes_on(&mut meter).await, "the two have used its time");
        meter.restart(Duration::from_millis(10), Instant::now());
        meter.enter_directly();
        assert!(meter.tick().is_ok());
        spin(Duration::from_millis(20));
        assert!(meter.tick().err().is_some_and(|error| error.is::<CpuSpent>()), "there is nothing to go on with");
    }

    #[tokio::test]
    async fn who_lacks_a_processor_or_has_yielded_to_others_uses_nothing() {
        let mut meter = metered(Duration::from_millis(100));
        assert!(goes_on(&mut meter).await);
        std::thread::sleep(Duration::from_millis(400));
        assert!(goes_on(&mut meter).await, "it did not run");
        let Ok(UpdateDeadline::YieldCustom(_, yielding)) = meter.tick() else { panic!("it may go on") };
        spin(Duration::from_millis(200));
        yielding.await;
        assert!(goes_on(&mut meter).await, "others ran");
    }

    /// Something of the host that is ready when it is asked again.
    async fn wait(meter: &mut CpuMeter) {
        meter.waiting(tokio::task::yield_now()).await;
    }

    #[tokio::test]
    async fn who_waits_more_often_than_epochs_end_pays_for_what_it_does_between() {
        let mut meter = metered(Duration::from_millis(200));
        wait(&mut meter).await;
        for _ in 0..5 {
            spin(Duration::from_millis(18));
            wait(&mut meter).await;
            assert!(goes_on(&mut meter).await, "it has used half of its time");
        }
        for _ in 0..7 {
            spin(Duration::from_millis(18));
            wait(&mut meter).await;
        }
        assert!(!goes_on(&mut meter).await, "it ends where it is given its thread back");
    }

    #[tokio::test]
    async fn what_is_ready_at_once_is_no_wait() {
        let mut meter = metered(Duration::from_millis(100));
        assert!(goes_on(&mut meter).await);
        meter.waiting(async { spin(Duration::from_millis(120)) }).await;
        assert!(!goes_on(&mut meter).await, "the guest had the thread");
    }

    #[tokio::test]
    async fn work_that_the_host_does_in_pieces_is_the_guests_and_what_others_do_between_is_not() {
        let mut meter = metered(Duration::from_millis(200));
        assert!(goes_on(&mut meter).await);
        let mut pieces = 0;
        let work = std::future::poll_fn(|context| {
            spin(Duration::from_millis(50));
            pieces += 1;
            context.waker().wake_by_ref();
            if pieces == 3 { Poll::Ready(()) } else { Poll::Pending }
        });
        let others = async {
            spin(Duration::from_millis(300));
            tokio::task::yield_now().await;
        };
        let (worked, ()) = tokio::join!(meter.working(work), others);
        assert!(worked.is_ok() && goes_on(&mut meter).await, "it has used three quarters of its time");
        meter.working(async { spin(Duration::from_millis(60)) }).await.unwrap();
        assert!(!goes_on(&mut meter).await, "and then the rest");
    }

    /// A search of many entries would go on for as long as it takes.
    #[tokio::test]
    async fn work_that_the_host_does_ends_after_the_piece_with_which_the_guest_has_used_its_time() {
        let mut meter = metered(Duration::from_millis(100));
        assert!(goes_on(&mut meter).await);
        let mut pieces = 0;
        let work = async {
            while pieces < 100 {
                spin(Duration::from_millis(60));
                pieces += 1;
                tokio::task::yield_now().await;
            }
        };
        assert!(meter.working(work).await.is_err());
        assert_eq!(pieces, 2);
        assert!(!goes_on(&mut meter).await);
    }

    #[tokio::test]
    async fn waiting_for_the_host_is_free_and_what_follows_is_not() {
        let mut meter = metered(Duration::from_millis(100));
        assert!(goes_on(&mut meter).await);
        let until = Instant::now() + Duration::from_millis(200);
        let work = std::future::poll_fn(|context| {
            spin(Duration::from_millis(20));
            context.waker().wake_by_ref();
            if Instant::now() >= until { Poll::Ready(()) } else { Poll::Pending }
        });
        meter.waiting(work).await;
        assert!(goes_on(&mut meter).await);
        spin(Duration::from_millis(100));
        assert!(!goes_on(&mut meter).await);
    }

    /// Hundreds may wait for a service at once; a thread that wakes each millisecond because of them does so for nothing.
    #[tokio::test]
    async fn no_epoch_ends_for_who_waits_unless_little_is_left_of_its_time() {
        for (left, while_it_waits) in [(LONGEST_LOOK * 2, 0), (LONGEST_LOOK, 1)] {
            let clock = still();
            let _running = clock.running();
            let mut meter = CpuMeter::new(clock.clone());
            meter.restart(left, Instant::now());
            {
                let mut waiting = pin!(wait(&mut meter));
                assert!(poll!(&mut waiting).is_pending());
                assert_eq!(seen(&clock), while_it_waits);
                waiting.await;
                assert_eq!(seen(&clock), 1, "it runs again");
            }
            assert!(poll!(pin!(wait(&mut meter))).is_pending());
            assert_eq!(seen(&clock), 1, "nobody waits for its end any more");
        }
    }

    #[tokio::test]
    async fn who_runs_for_an_epoch_after_a_wait_lets_others_have_its_thread() {
        let mut meter = metered(Duration::from_secs(1));
        wait(&mut meter).await;
        assert!(matches!(meter.tick(), Ok(UpdateDeadline::Continue(1))), "others have just had it");
        wait(&mut meter).await;
        spin(TICK * 2);
        assert!(matches!(meter.tick(), Ok(UpdateDeadline::YieldCustom(1, _))));
    }
}
