//! The clock of CPU limits: a thread that looks now and then whether a guest runs, advances the engine's epoch once per
//! millisecond while one does, and sleeps while none is called. Once a second it also lets the pools drop what was idle
//! for too long.

use crate::registry::Registry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};
use wasmtime::Engine;

/// Length of an epoch: how often a guest's CPU time is looked at, and the longest that it holds a thread before it yields,
/// once it was seen. Until then it is up to [`LOOK`] more (`docs/decisions/0017`).
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// How often it is looked whether a guest runs while none was seen: most calls are over within microseconds, and a thread
/// that wakes costs as much as some of them (`docs/decisions/0004`). A guest that goes on may be seen so much later.
const LOOK: Duration = Duration::from_millis(4);
/// Looks without a guest before the thread parks: calls in a burst never pay for waking it.
const LINGER: u32 = 25;
const SWEEP: Duration = Duration::from_secs(1);

/// Owns the thread; dropping it ends the thread.
pub(crate) struct Ticker {
    clock: Clock,
    handle: Option<JoinHandle<()>>,
}

/// What whoever enters a guest has of the thread.
#[derive(Clone)]
pub(crate) struct Clock(Arc<Shared>);

#[derive(Default)]
struct Shared {
    running: AtomicUsize,
    parked: AtomicBool,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
}

/// A guest runs while this lives.
pub(crate) struct Running<'a>(&'a Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Ticker {
    /// Starts the thread.
    pub(crate) fn start(engine: Engine, registry: Arc<Registry>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        let handle = std::thread::Builder::new()
            .name("plugin-epochs".into())
            .spawn(move || tick_until_stopped(&seen, &engine, &registry))?;
        let _ = shared.thread.set(handle.thread().clone());
        Ok(Self { clock: Clock(shared), handle: Some(handle) })
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }
}

impl Clock {
    /// To be held around each entry into a guest: without it no epoch ends, and no CPU limit holds.
    pub(crate) fn running(&self) -> Running<'_> {
        // SeqCst, here and where the thread parks: either this sees `parked`, or the thread sees `running`.
        self.0.running.fetch_add(1, Ordering::SeqCst);
        if self.0.parked.load(Ordering::SeqCst) && self.0.parked.swap(false, Ordering::SeqCst) {
            self.0.wake();
        }
        Running(&self.0)
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

fn tick_until_stopped(shared: &Shared, engine: &Engine, registry: &Registry) {
    let mut pace = Pace::default();
    let mut swept = Instant::now();
    let mut woke = swept;
    while !shared.stop.load(Ordering::SeqCst) {
        if let Some(wait) = pace.wait() {
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
        if swept.elapsed() >= SWEEP {
            swept = Instant::now();
            registry.sweep(swept);
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
    fn wait(&self) -> Option<Duration> {
        match self.quiet {
            0 => Some(TICK),
            quiet => (quiet < LINGER).then_some(LOOK),
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

/// Sleeps until a guest is entered, or for long enough to sweep; says whether it was a guest.
fn park(shared: &Shared) -> bool {
    shared.parked.store(true, Ordering::SeqCst);
    if shared.running.load(Ordering::SeqCst) == 0 && !shared.stop.load(Ordering::SeqCst) {
        std::thread::park_timeout(SWEEP);
    }
    // Who woke it has cleared the flag; a guest that came while it was set counts as well.
    !shared.parked.swap(false, Ordering::SeqCst) || shared.running.load(Ordering::SeqCst) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ticks_while_a_guest_is_seen_and_sleeps_when_none_is_called() {
        let mut pace = Pace::default();
        assert_eq!(pace.wait(), None, "nobody was called");
        pace.called();
        for _ in 1..LINGER {
            assert_eq!(pace.wait(), Some(LOOK), "short calls are not looked at each millisecond");
            pace.saw(false);
        }
        assert_eq!(pace.wait(), None);
        pace.called();
        for _ in 0..1_000 {
            pace.saw(true);
            assert_eq!(pace.wait(), Some(TICK), "it goes on");
        }
        pace.saw(false);
        assert_eq!(pace.wait(), Some(LOOK));
    }
}
