//! The clock of CPU limits: a thread that looks now and then whether a guest runs, advances the engine's epoch once per
//! millisecond while one does, and sleeps while none is called.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};
use wasmtime::Engine;

/// Length of an epoch: how often a guest's CPU time is looked at, and the longest that it holds a thread before it yields,
/// once it was seen; twice as long on its caller's stack. Until then it is up to [`LONGEST_LOOK`] more (`docs/decisions/0017`).
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// When it is looked for the first time whether a guest still runs, and after looks that saw none up to [`LONGEST_LOOK`]: most
/// calls are over within microseconds, and a thread that wakes costs as much as several of them (`docs/decisions/0026`). A guest
/// that goes on may be seen so much later; where others are seen as well that is soon.
const LOOK: Duration = Duration::from_millis(4);
/// The longest between two looks, where no plugin has a CPU limit of less than four times as much.
pub(crate) const LONGEST_LOOK: Duration = Duration::from_millis(16);
/// Looks without a guest before the thread parks: calls in a burst never pay for waking it.
const LINGER: u32 = 10;

/// Owns the thread; dropping it ends the thread.
pub(crate) struct Ticker {
    clock: Clock,
    handle: Option<JoinHandle<()>>,
}

/// What whoever enters a guest has of the thread.
#[derive(Clone)]
pub(crate) struct Clock(Arc<Shared>);

struct Shared {
    running: AtomicUsize,
    parked: AtomicBool,
    stop: AtomicBool,
    /// Milliseconds between two looks, at most.
    longest_look: AtomicU64,
    thread: OnceLock<Thread>,
}

impl Default for Shared {
    fn default() -> Self {
        let longest_look = AtomicU64::new(LONGEST_LOOK.as_millis() as u64);
        Self {
            running: AtomicUsize::new(0),
            parked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            longest_look,
            thread: OnceLock::new(),
        }
    }
}

/// A guest runs while this lives.
pub(crate) struct Running<'a>(&'a Shared);

/// A guest that is [`Running`] waits for the host while this lives: for it alone no epoch ends.
pub(crate) struct Paused(Clock);

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.enter();
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Ticker {
    /// Starts the thread.
    pub(crate) fn start(engine: Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        let handle = std::thread::Builder::new()
            .name("plugin-epochs".into())
            .spawn(move || tick_until_stopped(&seen, &engine))?;
        let _ = shared.thread.set(handle.thread().clone());
        Ok(Self { clock: Clock(shared), handle: Some(handle) })
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }
}

impl Clock {
    /// From now on it is looked often enough for a limit of so much CPU time.
    pub(crate) fn look_in_time_for(&self, cpu: Duration) {
        let longest = u64::try_from(cpu.as_millis() / 4).unwrap_or(u64::MAX).max(LOOK.as_millis() as u64);
        self.0.longest_look.fetch_min(longest, Ordering::Relaxed);
    }

    /// To be held around each entry into a guest: without it no epoch ends, and no CPU limit holds.
    pub(crate) fn running(&self) -> Running<'_> {
        self.enter();
        Running(&self.0)
    }

    /// To be held where a guest that is [`Self::running`] waits, and dropped before it goes on. It is seen as late then as one
    /// that was called: up to [`Self::longest_look`].
    pub(crate) fn pause(&self) -> Paused {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
        Paused(self.clone())
    }

    /// The longest that a guest runs before it is seen.
    pub(crate) fn longest_look(&self) -> Duration {
        Duration::from_millis(self.0.longest_look.load(Ordering::Relaxed))
    }

    fn enter(&self) {
        // SeqCst, here and where the thread parks: either this sees `parked`, or the thread sees `running`.
        self.0.running.fetch_add(1, Ordering::SeqCst);
        if self.0.parked.load(Ordering::SeqCst) && self.0.parked.swap(false, Ordering::SeqCst) {
            self.0.wake();
        }
    }
}

impl Shared {
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.clock.0.stop.store(true, Ordering::SeqCst);
        self.clock.0.wake();
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

fn tick_until_stopped(shared: &Shared, engine: &Engine) {
    let mut pace = Pace::default();
    let mut woke = Instant::now();
    while !shared.stop.load(Ordering::SeqCst) {
        let longest = Duration::from_millis(shared.longest_look.load(Ordering::Relaxed));
        if let Some(wait) = pace.wait(longest) {
            woke = sleep_after(woke, wait);
            let runs = shared.running.load(Ordering::SeqCst) != 0;
            if runs {
                engine.increment_epoch();
            }
            pace.saw(runs);
        } else if park(shared) {
            pace.called();
            woke = Instant::now();
        }
    }
}

/// When to look next.
struct Pace {
    /// Looks since a guest was seen running.
    quiet: u32,
}

impl Default for Pace {
    /// Nobody was called yet.
    fn default() -> Self {
        Self { quiet: LINGER }
    }
}

impl Pace {
    /// `None` where only a call is worth waking for.
    fn wait(&self, longest: Duration) -> Option<Duration> {
        match self.quiet {
            0 => Some(TICK),
            quiet => (quiet < LINGER).then(|| (LOOK * 2_u32.pow(quiet - 1)).min(longest)),
        }
    }

    fn saw(&mut self, runs: bool) {
        self.quiet = if runs { 0 } else { self.quiet + 1 };
    }

    /// A guest was entered. It may be gone before anybody looks.
    fn called(&mut self) {
        self.quiet = 1;
    }
}

/// Sleeps until `wait` after `last`, and says when that was to be: what sleeping takes too long does not add up. Who is
/// late by all of it goes on from now.
fn sleep_after(last: Instant, wait: Duration) -> Instant {
    let (now, next) = (Instant::now(), last + wait);
    let next = if next > now { next } else { now + wait };
    std::thread::sleep(next - now);
    next
}

/// Sleeps until a guest is entered, or nobody needs it any more; says whether it was a guest.
fn park(shared: &Shared) -> bool {
    shared.parked.store(true, Ordering::SeqCst);
    if shared.running.load(Ordering::SeqCst) == 0 && !shared.stop.load(Ordering::SeqCst) {
        std::thread::park();
    }
    // Who woke it has cleared the flag; a guest that came while it was set counts as well.
    !shared.parked.swap(false, Ordering::SeqCst) || shared.running.load(Ordering::SeqCst) != 0
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A clock that no thread looks after.
    pub(crate) fn still() -> Clock {
        Clock(Arc::default())
    }

    /// Guests that it sees.
    pub(crate) fn seen(clock: &Clock) -> usize {
        clock.0.running.load(Ordering::SeqCst)
    }

    #[test]
    fn it_ticks_while_a_guest_is_seen_looks_less_often_while_none_is_and_sleeps_when_none_is_called() {
        let (mut pace, longest) = (Pace::default(), Duration::from_millis(10));
        assert_eq!(pace.wait(longest), None, "nobody was called");
        pace.called();
        for ms in [4, 8, 10].into_iter().chain((4..LINGER).map(|_| 10)) {
            assert_eq!(pace.wait(longest), Some(Duration::from_millis(ms)));
            pace.saw(false);
        }
        assert_eq!(pace.wait(longest), None);
        pace.called();
        for _ in 0..1_000 {
            pace.saw(true);
            assert_eq!(pace.wait(longest), Some(TICK), "it goes on");
            assert!(pace.wait(longest) <= Some(Duration::from_millis(1)), "a limit holds to the millisecond");
        }
        pace.saw(false);
        assert_eq!(pace.wait(longest), Some(LOOK));
    }

    #[test]
    fn the_shortest_limit_says_how_often_it_is_looked_and_no_later_one_less_often() {
        let clock = still();
        let looks = |ms| {
            clock.look_in_time_for(Duration::from_millis(ms));
            clock.longest_look().as_millis()
        };
        assert_eq!([1_000, 100, 40, 100, 1].map(looks), [16, 16, 10, 10, 4]);
        assert_eq!(looks(u64::MAX), 4);
    }
}
