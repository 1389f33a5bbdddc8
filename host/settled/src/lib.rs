//! Polling until what is polled is settled. What serves a connection is several state machines in one task, and they
//! wake each other while they are polled: hyper's body wakes hyper's connection, the driver of an upstream's connection
//! wakes the answer that reads from it. The runtime takes a task that woke itself for one that yields: it goes to the
//! back of the queue and a second thread is woken to help, which costs a kernel call on each side and a cold cache. Here
//! such a wake-up only means another turn of the same poll, and of no more than the part that woke itself. What of a task is
//! seldom the part that was woken stands behind a [`Gate`].
//!
//! Invariant: who wakes while nothing is polled wakes the task; who wakes during a poll that ends with nothing ready
//! causes another one.

use futures_util::task::AtomicWaker;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Turns of one poll. A part that wakes itself more often does yield: it may be a guest that was interrupted so that
/// others get their turn.
const TURNS: usize = 3;

const IDLE: u8 = 0;
const POLLED: u8 = 1;
const WOKEN: u8 = 2;

/// Polls again, at once, what woke itself.
pub struct Turns {
    bell: Arc<Bell>,
    waker: Waker,
}

/// Who is to be woken, unless it is being polled.
struct Bell {
    task: AtomicWaker,
    state: AtomicU8,
}

impl Default for Turns {
    fn default() -> Self {
        let bell = Arc::new(Bell { task: AtomicWaker::new(), state: AtomicU8::new(IDLE) });
        Self { waker: Waker::from(Arc::clone(&bell)), bell }
    }
}

impl Turns {
    /// Polls until something is ready, or nothing woke the poll during it. As with any poll, who is told that something
    /// is ready polls again.
    pub fn poll<T>(&self, cx: &mut Context<'_>, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let state = &self.bell.state;
        self.bell.task.register(cx.waker());
        for _ in 0..TURNS {
            state.store(POLLED, Ordering::SeqCst);
            let polled = poll(&mut Context::from_waker(&self.waker));
            if polled.is_ready() {
                state.store(IDLE, Ordering::SeqCst);
                return polled;
            }
            if state.compare_exchange(POLLED, IDLE, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Poll::Pending;
            }
        }
        state.store(IDLE, Ordering::SeqCst);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // While it is polled nothing else is needed: whoever polls looks before it returns.
        if let Err(IDLE) = self.state.compare_exchange(POLLED, WOKEN, Ordering::SeqCst, Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

/// A future that is polled again where it woke itself.
pub struct Settled<F> {
    future: Pin<Box<F>>,
    turns: Turns,
}

impl<F: Future> Settled<F> {
    /// Of `future`.
    pub fn new(future: F) -> Self {
        Self { future: Box::pin(future), turns: Turns::default() }
    }
}

impl<F: Future> Future for Settled<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, turns } = &mut *self;
        turns.poll(cx, |cx| future.as_mut().poll(cx))
    }
}

/// A part of a task that is polled only where it was woken itself, and not because another part was.
pub struct Gate<F> {
    future: F,
    own: Arc<Own>,
    waker: Waker,
}

/// Whether a part was woken, and the task that it is of.
struct Own {
    task: AtomicWaker,
    woken: AtomicBool,
}

impl<F: Future + Unpin> Gate<F> {
    /// In front of `future`, which is polled once in any case.
    pub fn new(future: F) -> Self {
        let own = Arc::new(Own { task: AtomicWaker::new(), woken: AtomicBool::new(true) });
        Self { future, waker: Waker::from(Arc::clone(&own)), own }
    }
}

impl<F: Future + Unpin> Future for Gate<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, own, waker } = &mut *self;
        // Before the look: who wakes behind it wakes this task.
        own.task.register(cx.waker());
        if !own.woken.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        Pin::new(future).poll(&mut Context::from_waker(waker))
    }
}

impl Wake for Own {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Before the task is woken, which may look at once.
        self.woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Polls a future once that wakes itself `times` times; how often it was polled, and its task woken.
    fn polled(times: usize) -> (usize, usize) {
        let (polls, wakes) = (Arc::new(AtomicUsize::new(0)), Arc::new(Count::default()));
        let counter = Arc::clone(&polls);
        let mut settled = Settled::new(poll_fn(move |cx| {
            if counter.fetch_add(1, Ordering::SeqCst) < times {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        }));
        let waker = Waker::from(Arc::clone(&wakes));
        assert!(Pin::new(&mut settled).poll(&mut Context::from_waker(&waker)).is_pending());
        (polls.load(Ordering::SeqCst), wakes.0.load(Ordering::SeqCst))
    }

    #[test]
    fn a_task_that_wakes_itself_is_polled_again_at_once_and_yields_in_the_end() {
        assert_eq!(polled(0), (1, 0));
        assert_eq!(polled(1), (2, 0));
        assert_eq!(polled(2), (3, 0));
        assert_eq!(polled(3), (3, 1));
        assert_eq!(polled(usize::MAX), (3, 1));
    }

    /// What is ready is told at once, and who wakes after that is heard: a body whose driver woke it is read on.
    #[test]
    fn who_wakes_behind_what_was_ready_wakes_the_task() {
        let (turns, wakes) = (Turns::default(), Arc::new(Count::default()));
        let waker = Waker::from(Arc::clone(&wakes));
        let mut kept = None;
        let polled = turns.poll(&mut Context::from_waker(&waker), |cx| {
            kept = Some(cx.waker().clone());
            cx.waker().wake_by_ref();
            Poll::Ready(())
        });
        assert!(polled.is_ready() && wakes.0.load(Ordering::SeqCst) == 0);
        kept.unwrap().wake();
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn behind_a_gate_is_polled_what_was_woken_itself_and_nothing_else() {
        let (polls, wakes) = (Arc::new(AtomicUsize::new(0)), [(); 2].map(|()| Arc::new(Count::default())));
        let (counter, kept) = (Arc::clone(&polls), Arc::new(AtomicWaker::new()));
        let own = Arc::clone(&kept);
        let mut gate = Gate::new(Box::pin(poll_fn(move |cx| {
            own.register(cx.waker());
            if counter.fetch_add(1, Ordering::SeqCst) < 2 { Poll::Pending } else { Poll::Ready(()) }
        })));
        let [first, second] = wakes.clone().map(Waker::from);
        let mut poll = |waker: &Waker| Pin::new(&mut gate).poll(&mut Context::from_waker(waker)).is_ready();
        assert!(!poll(&first), "once in any case");
        assert!(!poll(&first) && !poll(&second));
        assert_eq!(polls.load(Ordering::SeqCst), 1);
        kept.wake();
        let woken = || wakes.each_ref().map(|wakes| wakes.0.load(Ordering::SeqCst));
        assert_eq!(woken(), [0, 1], "the task that polled last");
        assert!(!poll(&second) && !poll(&second));
        assert_eq!(polls.load(Ordering::SeqCst), 2);
        kept.wake();
        assert!(poll(&second));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_wake_up_from_another_thread_is_lost() {
        no_wake_up_is_lost(|work| Box::pin(Settled::new(work))).await;
    }

    /// Beside a part that wakes the task all the time.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_wake_up_is_lost_behind_a_gate() {
        no_wake_up_is_lost(|work| {
            let mut gate = Gate::new(work);
            let mut turns = 0;
            Box::pin(Settled::new(poll_fn(move |cx| {
                turns += 1;
                if turns % 5 == 0 {
                    cx.waker().wake_by_ref();
                }
                Pin::new(&mut gate).poll(cx)
            })))
        })
        .await;
    }

    type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

    async fn no_wake_up_is_lost(polled_by: fn(Work) -> Work) {
        let mut tasks = Vec::new();
        for _ in 0..64 {
            let (sender, mut receiver) = tokio::sync::mpsc::channel::<u32>(1);
            tasks.push(tokio::spawn(polled_by(Box::pin(async move {
                let mut sum = 0u64;
                while let Some(number) = receiver.recv().await {
                    sum += u64::from(number);
                    if number % 3 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                assert_eq!(sum, 1999 * 1000);
            }))));
            tasks.push(tokio::spawn(async move {
                for number in 0..2000 {
                    sender.send(number).await.unwrap();
                }
            }));
        }
        let all = futures_util::future::join_all(tasks);
        let ended = tokio::time::timeout(std::time::Duration::from_secs(60), all).await;
        assert!(ended.expect("a task sleeps for ever").iter().all(Result::is_ok));
    }
}
