//! Grammars that are compiled beside the loop, and the jobs that wait for them.
//!
//! Tenants take turns. Each has one compile that somebody waits for; one that takes too long, or whose job is gone, goes
//! on behind the loop's back, since nothing can end it, and no more than [`MAX_THREADS`] of both go on at once, two of
//! them at most of one tenant. So what one tenant asks for does not hold up another, and nobody waits without end.

use crate::sequence::Work;
use std::collections::VecDeque;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_grammar::{Compiled, GrammarError};
use tidegate_types::{Fault, JobId, Reject, RejectKind, TenantId};

/// Compiles that go on at once, forgotten ones included.
const MAX_THREADS: usize = 4;
/// Of one tenant.
const MAX_OF_TENANT: usize = 2;
/// How long a job waits for its own compile, and before that for its turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// When to come again whose turn did not come.
const RETRY_AFTER_S: u32 = 10;

/// What compiles a job's grammar, on a thread of its own.
pub(crate) type Compile = Box<dyn FnOnce() -> Result<Compiled, GrammarError> + Send>;

/// A compile that goes on, and the job that waits for it, if one still does.
#[derive(Debug)]
struct Compiling {
    tenant: TenantId,
    work: Option<Work>,
    since: Instant,
    thread: JoinHandle<Result<Compiled, GrammarError>>,
}

/// Jobs that wait for their grammars; no more than the queue's limits let in.
#[derive(Debug)]
pub(crate) struct Line {
    patience: Duration,
    /// By tenant, whose turn is next first; of a tenant in order of arrival, since when, and never none.
    waiting: VecDeque<(TenantId, VecDeque<(Instant, Work)>)>,
    compiling: Vec<Compiling>,
}

impl Default for Line {
    fn default() -> Self {
        Self { patience: PATIENCE, waiting: VecDeque::new(), compiling: Vec::new() }
    }
}

impl Line {
    pub(crate) fn push(&mut self, work: Work) {
        let (tenant, now) = (work.job.tenant.clone(), Instant::now());
        match self.waiting.iter_mut().find(|(waiting, _)| *waiting == tenant) {
            Some((_, of_tenant)) => of_tenant.push_back((now, work)),
            None => self.waiting.push_back((tenant, VecDeque::from([(now, work)]))),
        }
    }

    /// Whose turn it is, if somebody may begin now.
    pub(crate) fn next(&mut self) -> Option<Work> {
        if self.compiling.len() >= MAX_THREADS {
            return None;
        }
        let turn = self.waiting.iter().position(|(tenant, _)| self.may_begin(tenant))?;
        let (tenant, mut of_tenant) = self.waiting.remove(turn)?;
        let next = of_tenant.pop_front();
        if !of_tenant.is_empty() {
            self.waiting.push_back((tenant, of_tenant));
        }
        next.map(|(_, work)| work)
    }

    fn may_begin(&self, tenant: &TenantId) -> bool {
        let mut own = self.compiling.iter().filter(|compiling| compiling.tenant == *tenant);
        own.clone().count() < MAX_OF_TENANT && own.all(|compiling| compiling.work.is_none())
    }

    /// Begins with what [`Self::next`] gave.
    pub(crate) fn begin(&mut self, work: Work, compile: Compile) -> Result<(), Reject> {
        let thread = std::thread::Builder::new().name("tidegate-compile".into()).spawn(compile);
        let thread =
            thread.map_err(|error| Reject::internal(Fault::Engine, format!("no thread to compile on: {error}")))?;
        let (tenant, since) = (work.job.tenant.clone(), Instant::now());
        self.compiling.push(Compiling { tenant, work: Some(work), since, thread });
        Ok(())
    }

    /// Jobs whose compile has ended, with what came of it.
    pub(crate) fn ended(&mut self) -> Vec<(Work, Result<Compiled, GrammarError>)> {
        let stuck = |_| Err(GrammarError::Stuck("compiling it failed".to_owned()));
        let ended = self.compiling.extract_if(.., |compiling| compiling.thread.is_finished());
        ended.filter_map(|done| Some((done.work?, done.thread.join().unwrap_or_else(stuck)))).collect()
    }

    /// Jobs whose compile takes too long, which goes on without them, and jobs whose turn does not come.
    pub(crate) fn late(&mut self) -> Vec<(JobId, Reject)> {
        let patience = self.patience;
        let late = self.compiling.iter_mut().filter(|compiling| compiling.since.elapsed() > patience);
        let slow = late.filter_map(|compiling| compiling.work.take()).map(|work| (work.job.id, too_slow(patience)));
        let mut late: Vec<_> = slow.collect();
        for (_, of_tenant) in &mut self.waiting {
            while let Some((_, work)) = of_tenant.pop_front_if(|(since, _)| since.elapsed() > patience) {
                late.push((work.job.id, no_turn(patience)));
            }
        }
        self.waiting.retain(|(_, of_tenant)| !of_tenant.is_empty());
        late
    }

    /// Forgets a job. What is compiled for it goes on.
    pub(crate) fn forget(&mut self, id: JobId) {
        for compiling in &mut self.compiling {
            compiling.work.take_if(|work| work.job.id == id);
        }
        self.waiting.iter_mut().for_each(|(_, of_tenant)| of_tenant.retain(|(_, work)| work.job.id != id));
        self.waiting.retain(|(_, of_tenant)| !of_tenant.is_empty());
    }

    /// Jobs that wait for their grammars.
    pub(crate) fn num_waiting(&self) -> usize {
        let in_line: usize = self.waiting.iter().map(|(_, of_tenant)| of_tenant.len()).sum();
        in_line + self.compiling.iter().filter(|compiling| compiling.work.is_some()).count()
    }
}

fn too_slow(patience: Duration) -> Reject {
    let message = "the schema takes too long to compile; make it smaller";
    let cause = format!("its compile was not done within {patience:?}");
    Reject::new(RejectKind::Internal, Fault::Engine, message).code("schema_failed").because(cause)
}

fn no_turn(patience: Duration) -> Reject {
    let message = "other schemas are being compiled, and take long; send the request again later, or smaller schemas";
    let cause = format!("no turn to compile within {patience:?}");
    Reject::unavailable(Fault::Engine, message, RETRY_AFTER_S).code("engine_queue_full").because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{Caller, Job};

    fn work(tenant: &str, id: u64) -> Work {
        let caller = Caller { tenant: TenantId::new(tenant), ..Caller::local() };
        Work::new(Job::of(&caller, JobId(id), vec![1]))
    }

    fn line(patience: Duration, jobs: &[(&str, u64)]) -> Line {
        let mut line = Line { patience, ..Line::default() };
        jobs.iter().for_each(|(tenant, id)| line.push(work(tenant, *id)));
        line
    }

    /// Begins with whoever may, with compiles that take until the test is over.
    fn begin_all(line: &mut Line) -> Vec<u64> {
        let forever = || {
            std::thread::sleep(Duration::from_secs(60));
            Err(GrammarError::Stuck("too late".to_owned()))
        };
        let mut begun = Vec::new();
        while let Some(work) = line.next() {
            begun.push(work.job.id.0);
            line.begin(work, Box::new(forever)).unwrap();
        }
        begun
    }

    #[test]
    fn tenants_take_turns_whoever_asks_most() {
        let mut line = line(PATIENCE, &[("large", 1), ("large", 2), ("large", 3), ("small", 4), ("large", 5)]);
        let order: Vec<_> = std::iter::from_fn(|| line.next()).map(|work| work.job.id.0).collect();
        assert_eq!(order, [1, 4, 2, 3, 5]);
    }

    #[test]
    fn one_tenants_compile_does_not_hold_up_anothers() {
        let mut line = line(PATIENCE, &[("a", 1), ("a", 2), ("b", 3)]);
        assert_eq!(begin_all(&mut line), [1, 3], "its own second waits for its first");
        assert_eq!(line.num_waiting(), 3);
    }

    #[test]
    fn a_cancelled_jobs_compile_goes_on_without_holding_up_the_line() {
        let mut line = line(PATIENCE, &[("a", 1), ("a", 2), ("a", 3)]);
        assert_eq!(begin_all(&mut line), [1]);
        line.forget(JobId(1));
        assert_eq!(begin_all(&mut line), [2]);
        line.forget(JobId(2));
        assert!(begin_all(&mut line).is_empty(), "two threads of one tenant");
        assert_eq!(line.num_waiting(), 1);
    }

    #[test]
    fn a_compile_that_takes_too_long_fails_its_job_alone() {
        let mut line = line(Duration::ZERO, &[("a", 1)]);
        begin_all(&mut line);
        assert_eq!(late(&mut line), [(1, "schema_failed".to_owned())]);
        assert!(late(&mut line).is_empty() && line.ended().is_empty(), "once");
        line.push(work("a", 2));
        assert_eq!(begin_all(&mut line), [2]);
    }

    #[test]
    fn whose_turn_does_not_come_is_told_so() {
        let mut line = line(PATIENCE, &[("a", 1), ("a", 2), ("a", 3)]);
        for id in [1, 2] {
            assert_eq!(begin_all(&mut line), [id]);
            line.forget(JobId(id));
        }
        line.push(work("b", 4));
        assert!(late(&mut line).is_empty());
        line.patience = Duration::ZERO;
        assert_eq!(late(&mut line), [(3, "engine_queue_full".to_owned()), (4, "engine_queue_full".to_owned())]);
        assert_eq!(line.num_waiting(), 0);
    }

    fn late(line: &mut Line) -> Vec<(u64, String)> {
        line.late().into_iter().map(|(id, reject)| (id.0, reject.code.unwrap_or_default().to_string())).collect()
    }

    #[test]
    fn compiles_that_go_on_are_few() {
        let mut line = line(PATIENCE, &[("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)]);
        assert_eq!(begin_all(&mut line), [1, 2, 3, 4]);
    }

    #[test]
    fn a_compile_that_panics_fails_its_job_alone() {
        let mut line = line(PATIENCE, &[("a", 1)]);
        let work = line.next().unwrap();
        line.begin(work, Box::new(|| panic!("told to"))).unwrap();
        let ended = std::iter::repeat_with(|| line.ended()).find(|ended| !ended.is_empty()).unwrap();
        assert!(matches!(&ended[..], [(work, Err(GrammarError::Stuck(_)))] if work.job.id == JobId(1)));
        assert_eq!(line.num_waiting(), 0);
    }
}
