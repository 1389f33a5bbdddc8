//! Threads for one executor: work is claimed unit by unit, so nobody waits for a thread that the system took away.
//!
//! A job is a number of units and a function of (worker, unit). The caller publishes it, works on it itself, and
//! at the end waits only for units that were claimed and are not finished: a helper that sleeps or was pre-empted
//! between units costs nothing. Helpers spin for some tens of microseconds, then sleep. With one thread nothing is
//! shared and nothing is published.
//!
//! Invariant: the job's function and what it borrows live until every claimed unit has ended, panics included.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};

/// Turns of the idle loop before a helper sleeps: about 20 us.
const IDLE_SPINS: u32 = 1000;
/// Turns of the closing wait before the caller gives its time slice away.
const CLOSING_SPINS: u32 = 200;

/// Calls the job behind the pointer.
type Call = unsafe fn(*const (), usize, usize);

/// A line of its own, so that the claims of one thread do not slow the spinning of another.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

#[derive(Default)]
struct Shared {
    /// Epoch in the upper half, units not yet claimed in the lower. A claim is a compare-exchange that takes one:
    /// it can only succeed while its job is open, so what it then reads of the job is that job's.
    ticket: Line<AtomicU64>,
    /// Units that ended.
    done: Line<AtomicUsize>,
    units: AtomicUsize,
    job: AtomicPtr<()>,
    call: AtomicPtr<()>,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// One for each helper: it sleeps, or is about to.
    asleep: Vec<AtomicBool>,
}

/// A unit panicked; what it was computing is lost.
#[derive(Debug)]
pub(super) struct Panicked;

/// The threads. Dropping it ends them.
pub(super) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    threads: Vec<Thread>,
}

impl Pool {
    /// A pool of `workers` threads, the caller's included.
    pub(super) fn new(workers: usize) -> std::io::Result<Self> {
        let num_helpers = workers.saturating_sub(1);
        let asleep = (0..num_helpers).map(|_| AtomicBool::new(false)).collect();
        let mut pool =
            Self { shared: Arc::new(Shared { asleep, ..Shared::default() }), helpers: Vec::new(), threads: Vec::new() };
        for i in 0..num_helpers {
            let shared = Arc::clone(&pool.shared);
            let helper = std::thread::Builder::new().name(format!("cpu-{}", i + 1)).spawn(move || help(&shared, i))?;
            pool.threads.push(helper.thread().clone());
            pool.helpers.push(helper);
        }
        Ok(pool)
    }

    /// Threads that work, the caller's included.
    pub(super) fn workers(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `job(worker, unit)` for every unit below `units`, each once, in any order, on any worker below
    /// [`Self::workers`]; returns when all have ended. Takes `&mut self`: one job at a time.
    pub(super) fn run<F: Fn(usize, usize) + Sync>(&mut self, units: usize, job: &F) -> Result<(), Panicked> {
        if units <= 1 || self.helpers.is_empty() {
            return catch_unwind(AssertUnwindSafe(|| (0..units).for_each(|u| job(0, u)))).map_err(|_| Panicked);
        }
        debug_assert!(u32::try_from(units).is_ok(), "units fit the ticket");
        self.publish(units, job);
        while work_on_one(&self.shared, 0) {}
        let mut spins = 0;
        // Acquire: what the units wrote is visible to whoever reads it next.
        while self.shared.done.0.load(Ordering::Acquire) < units {
            spins += 1;
            if spins > CLOSING_SPINS { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        if self.shared.panicked.swap(false, Ordering::Relaxed) { Err(Panicked) } else { Ok(()) }
    }

    fn publish<F: Fn(usize, usize) + Sync>(&self, units: usize, job: &F) {
        unsafe fn call<F: Fn(usize, usize)>(job: *const (), worker: usize, unit: usize) {
            // SAFETY: `job` is the `&F` of the open job, which outlives every claimed unit.
            unsafe { (*job.cast::<F>())(worker, unit) }
        }
        let shared = &*self.shared;
        let epoch = (shared.ticket.0.load(Ordering::Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
        shared.done.0.store(0, Ordering::Relaxed);
        shared.units.store(units, Ordering::Relaxed);
        shared.job.store(std::ptr::from_ref(job).cast_mut().cast(), Ordering::Relaxed);
        shared.call.store(call::<F> as Call as *mut (), Ordering::Relaxed);
        // SeqCst, as the helpers' flags: either we see a helper asleep, or it sees the ticket before it sleeps.
        shared.ticket.0.store(epoch << 32 | units as u64, Ordering::SeqCst);
        for (asleep, thread) in shared.asleep.iter().zip(&self.threads) {
            if asleep.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in &self.threads {
            thread.unpark();
        }
        for helper in self.helpers.drain(..) {
            // A helper catches the panics of its units; there is nothing to report.
            let _ = helper.join();
        }
    }
}

/// Claims one unit of the open job and does it; false where none is left.
fn work_on_one(shared: &Shared, worker: usize) -> bool {
    let mut ticket = shared.ticket.0.load(Ordering::Acquire);
    loop {
        let left = ticket & 0xffff_ffff;
        if left == 0 {
            return false;
        }
        match shared.ticket.0.compare_exchange_weak(ticket, ticket - 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                do_unit(shared, worker, left as usize);
                return true;
            }
            Err(now) => ticket = now,
        }
    }
}

fn do_unit(shared: &Shared, worker: usize, left: usize) {
    let unit = shared.units.load(Ordering::Relaxed) - left;
    let job = shared.job.load(Ordering::Relaxed);
    let call = shared.call.load(Ordering::Relaxed);
    debug_assert!(!call.is_null(), "an open job has a function");
    // SAFETY: `call` was stored from a `Call` by `publish` before the ticket that we claimed from. The job cannot
    // end, nor its fields change, before `done` counts this unit.
    let outcome = catch_unwind(AssertUnwindSafe(|| unsafe {
        let call: Call = std::mem::transmute(call);
        call(job, worker, unit);
    }));
    if outcome.is_err() {
        shared.panicked.store(true, Ordering::Relaxed);
    }
    // Release: what the unit wrote goes with the count.
    shared.done.0.fetch_add(1, Ordering::Release);
}

/// A helper's life.
fn help(shared: &Shared, index: usize) {
    let worker = index + 1;
    while !shared.stop.load(Ordering::Relaxed) {
        let mut spins = 0;
        while spins < IDLE_SPINS {
            if work_on_one(shared, worker) {
                spins = 0;
            }
            spins += 1;
            std::hint::spin_loop();
        }
        shared.asleep[index].store(true, Ordering::SeqCst);
        let idle = shared.ticket.0.load(Ordering::SeqCst) & 0xffff_ffff == 0;
        if idle && !shared.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        shared.asleep[index].store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn each_unit_of_many_jobs_runs_exactly_once() {
        for workers in [1, 2, 5] {
            let mut pool = Pool::new(workers).unwrap();
            for round in 0..2000_usize {
                let hits: Vec<AtomicU32> = (0..round % 37).map(|_| AtomicU32::new(0)).collect();
                let job = |worker: usize, unit: usize| {
                    assert!(worker < workers);
                    hits[unit].fetch_add(1, Ordering::Relaxed);
                };
                pool.run(hits.len(), &job).unwrap();
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "workers {workers}, round {round}");
            }
        }
    }

    #[test]
    fn sleeping_helpers_wake_for_the_next_job() {
        let mut pool = Pool::new(3).unwrap();
        for _ in 0..20 {
            while !pool.shared.asleep.iter().all(|a| a.load(Ordering::SeqCst)) {
                std::thread::yield_now();
            }
            // Two units that wait for each other can only end on two threads.
            let met = std::sync::Barrier::new(2);
            pool.run(2, &|_, _| {
                met.wait();
            })
            .unwrap();
        }
    }

    #[test]
    fn a_unit_that_panics_fails_its_job_and_not_the_next() {
        for workers in [1, 3] {
            let mut pool = Pool::new(workers).unwrap();
            assert!(pool.run(8, &|_, unit| assert_ne!(unit, 5)).is_err());
            assert!(pool.run(8, &|_, _| ()).is_ok());
        }
    }
}
