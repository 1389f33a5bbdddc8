//! The loop: takes commands, steps while there is work, sleeps while there is none.
//!
//! It owns the scheduler and the executor, and ends when it is told to or when the device is lost. Where commands
//! come from and reports go is a [`Front`]: the handle's side in a thread, a pipe in a worker process. What happens
//! to a lost device is decided outside: `thread.rs` replaces the device, `isolation.rs` the process.

use crate::config::{Ahead, ModelFacts};
use crate::error::EngineError;
use crate::guides::Guides;
use crate::inbox::{Command, Inbox};
use crate::prefix::PrefixHasher;
use crate::scheduler::{Rules, Scheduler};
use crate::stats::Snapshot;
use crate::step::{Lost, StepReport, Stepper};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tidegate_device::Executor;
use tidegate_types::JobId;

/// How long an idle loop sleeps before it says that it is alive.
const IDLE: Duration = Duration::from_secs(1);
/// How long it sleeps while jobs wait for their grammars alone.
const COMPILING: Duration = Duration::from_millis(2);
/// How often it says then that it is alive: well within the second that a stall may be set to.
const COMPILING_SAYS: Duration = Duration::from_millis(250);

/// What the loop talks to.
pub(crate) trait Front {
    /// Where commands come from.
    fn inbox(&self) -> &Inbox;
    /// Steps with these jobs are about to be computed that may kill the device: some are new, or one was lost over
    /// them before.
    fn announce(&self, jobs: Vec<JobId>);
    /// A step is done.
    fn deliver(&self, report: StepReport);
    /// There is no work; said again from time to time.
    fn rest(&self, snapshot: Snapshot);
}

/// Why the loop ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It was told to.
    Stopped,
    /// The device was lost.
    Lost(Lost),
}

/// A scheduler with a fresh random key.
pub(crate) fn new_scheduler(rules: Rules, facts: &ModelFacts) -> Result<Scheduler, EngineError> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|error| EngineError::Random(error.to_string()))?;
    Ok(Scheduler::new(rules, PrefixHasher::new(key, facts)))
}

/// Runs until it is stopped or the device is lost; the scheduler keeps its jobs.
pub(crate) fn run(
    front: &impl Front,
    ahead: Ahead,
    scheduler: &mut Scheduler,
    guides: &mut Guides,
    executor: &mut dyn Executor,
) -> Ended {
    guides.keep_known(scheduler);
    // Vectors are read from the last forward, so that no other is queued behind it.
    let makes_tokens = scheduler.pooling().is_none();
    let mut stepper = Stepper::new(match ahead {
        Ahead::Auto => makes_tokens && executor.runs_behind(),
        Ahead::Always => makes_tokens,
        Ahead::Never => false,
    });
    let (mut resting, mut said) = (false, Instant::now());
    loop {
        let inbox = front.inbox();
        let is_busy = scheduler.has_work() || stepper.in_flight();
        let patience = if guides.num_waiting() > 0 { COMPILING } else { IDLE };
        let commands = if is_busy { inbox.take() } else { inbox.wait(patience) };
        if !obey(commands, scheduler, guides) {
            return Ended::Stopped;
        }
        let events = guides.advance(scheduler);
        if !events.is_empty() {
            front.deliver(StepReport { events, snapshot: scheduler.snapshot(), ..StepReport::default() });
        }
        if !scheduler.has_work() && !stepper.in_flight() {
            if !std::mem::replace(&mut resting, true) {
                check_books(scheduler);
            }
            let compiling = guides.num_waiting();
            if compiling == 0 || said.elapsed() >= COMPILING_SAYS {
                said = Instant::now();
                front.rest(Snapshot { compiling, ..scheduler.snapshot() });
            }
            continue;
        }
        resting = false;
        match stepper.step(scheduler, guides, executor, &|jobs| front.announce(jobs)) {
            Ok(report) => front.deliver(report),
            Err(lost) => return Ended::Lost(lost),
        }
    }
}

/// Returns false when the loop shall end.
fn obey(commands: VecDeque<Command>, scheduler: &mut Scheduler, guides: &mut Guides) -> bool {
    for command in commands {
        match command {
            Command::Submit(work) => guides.submit(work, scheduler),
            Command::Cancel(id) => {
                guides.forget(id);
                scheduler.cancel(id);
            }
            Command::Stop => return false,
        }
    }
    true
}

/// Nothing is left to do: all blocks must be back.
fn check_books(scheduler: &mut Scheduler) {
    if let Err(error) = scheduler.check() {
        tracing::error!(%error, "the cache's books do not balance; the cache is emptied");
        scheduler.reset_cache();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineConfig;
    use crate::sequence::Work;
    use crate::toy::{self, Faults, ToyExecutor};
    use std::sync::{Arc, Mutex};
    use tidegate_grammar::Grammars;
    use tidegate_types::{Caller, Job};

    #[derive(Default)]
    struct Listener {
        inbox: Inbox,
        rests: Mutex<Vec<usize>>,
    }

    impl Front for Listener {
        fn inbox(&self) -> &Inbox {
            &self.inbox
        }

        fn announce(&self, _jobs: Vec<JobId>) {}

        fn deliver(&self, _report: StepReport) {}

        fn rest(&self, snapshot: Snapshot) {
            self.rests.lock().unwrap().push(snapshot.compiling);
            // Said twice while a grammar is compiled, which takes until the test is over.
            if self.rests.lock().unwrap().len() > 1 {
                self.inbox.push(Command::Stop);
            }
        }
    }

    #[test]
    fn a_loop_whose_jobs_wait_for_their_grammars_says_that_it_is_alive() {
        let (facts, config) = (toy::facts(50, 256), EngineConfig { kv_cache_mib: Some(4), ..EngineConfig::default() });
        let limits = config.limits(&facts).unwrap();
        let mut scheduler = new_scheduler(Rules::new(&config, &facts, &limits), &facts).unwrap();
        let slow = Grammars::new(|| {
            std::thread::sleep(Duration::from_secs(5));
            Err("nobody waits for this".to_owned())
        });
        let mut guides = Guides::new(Some(Arc::new(slow)), facts.vocab);
        let front = Listener::default();
        let held = Job { grammar: Some("start: /a/".into()), ..Job::of(&Caller::local(), JobId(0), vec![1]) };
        front.inbox.push(Command::Submit(Work::new(held)));
        let mut executor = ToyExecutor::new(50, limits, Faults::default());
        run(&front, Ahead::Never, &mut scheduler, &mut guides, &mut executor);
        assert_eq!(*front.rests.lock().unwrap(), [1, 1]);
    }
}
