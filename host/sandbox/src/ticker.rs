//! The clock of CPU limits: a thread that advances the engine's epoch once per millisecond while a guest runs, and
//! sleeps while none does. Once a second it also lets the pools drop what was idle for too long.

use crate::registry::Registry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};
use wasmtime::Engine;

/// Length of an epoch: how often a guest's CPU time is looked at, and the longest that it holds a thread before it yields.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Ticks without a guest before the thread parks: calls in a burst never pay for waking it.
const LINGER: u32 = 100;
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
    let mut quiet = 0;
    let mut swept = Instant::now();
    let mut ticked = swept;
    while !shared.stop.load(Ordering::SeqCst) {
        if quiet < LINGER {
            ticked = sleep_after(ticked);
            engine.increment_epoch();
            quiet = if shared.running.load(Ordering::SeqCst) == 0 { quiet + 1 } else { 0 };
        } else if park(shared) {
            quiet = 0;
            ticked = Instant::now();
        }
        if swept.elapsed() >= SWEEP {
            swept = Instant::now();
            registry.sweep(swept);
        }
    }
}

/// Sleeps until a tick after `last`, and says when that was to be: what sleeping takes too long does not add up. Who is
/// late by a whole tick goes on from now.
fn sleep_after(last: Instant) -> Instant {
    let (now, next) = (Instant::now(), last + TICK);
    let next = if next > now { next } else { now + TICK };
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
