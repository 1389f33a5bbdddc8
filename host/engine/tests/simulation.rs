//! The heart of the engine's tests: whatever the schedule, a job gets the same tokens, or vector.
//!
//! The toy executor draws each token from the prefix as it reads it back from its paged cache, and makes rows of vectors
//! likewise, so a wrong block table, a stale block or a piece computed twice or never shows as another token or vector.
//! Schedules vary the budget, the pool (down to where everything is preempted all the time), slots, cache on and off,
//! arrivals, cancellations, lost devices, and whether steps are planned one ahead; the toy refuses a block that a step in
//! flight may use. Read next: `simulation/vectors.rs`, the same for models that make those.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which clippy does not take for tests.

#[path = "simulation/vectors.rs"]
mod vectors;

use proptest::prelude::*;
use std::collections::HashMap;
use tidegate_device::Limits;
use tidegate_engine::Guides;
use tidegate_engine::config::BLOCK_TOKENS;
use tidegate_engine::prefix::PrefixHasher;
use tidegate_engine::scheduler::{Item, Outcome, Rules, Scheduler};
use tidegate_engine::sequence::Work;
use tidegate_engine::step::Stepper;
use tidegate_engine::toy::{self, Faults, ToyExecutor};
use tidegate_types::{Class, Job, JobEvent, JobId, SampledToken, SamplingParams, TenantId};

const VOCAB: usize = 40;

#[derive(Clone, Debug)]
struct Arrival {
    at_step: usize,
    job: Job,
    cancel_at_step: Option<usize>,
}

#[derive(Clone, Debug)]
struct Schedule {
    rules: Rules,
    /// Whether each step is planned while the one before it is computed.
    ahead: bool,
    arrivals: Vec<Arrival>,
    lost_at_steps: Vec<usize>,
    faults: Faults,
}

/// Everything that came out for a job.
#[derive(Debug, Default)]
struct Heard {
    tokens: Vec<u32>,
    events: Vec<JobEvent>,
}

fn job(id: u64, tenant: &str, prompt: Vec<u32>, max_tokens: u32) -> Job {
    Job {
        id: JobId(id),
        prompt,
        sampling: SamplingParams::greedy(),
        max_tokens,
        stop_token_ids: vec![0],
        grammar: None,
        tenant: TenantId::new(tenant),
        class: Class::Standard,
        weight: 1,
    }
}

fn rules(num_blocks: usize, max_batch_tokens: usize, max_seqs: usize) -> Rules {
    let limits = Limits { num_blocks, block_tokens: BLOCK_TOKENS, max_batch_tokens, max_seqs };
    let context = (num_blocks * BLOCK_TOKENS).min(200);
    Rules { limits, context, prefix_cache: true, max_preemptions: 3, max_restarts: u32::MAX, pooling: None }
}

fn scheduler(rules: &Rules) -> Scheduler {
    Scheduler::new(rules.clone(), PrefixHasher::new([7; 32], &toy::facts(VOCAB, 200)))
}

fn executor(schedule: &Schedule) -> ToyExecutor {
    let toy = ToyExecutor::new(VOCAB, schedule.rules.limits.clone(), schedule.faults.clone());
    match schedule.rules.pooling {
        Some(pooling) => toy.with_vectors(pooling),
        None => toy,
    }
}

/// Runs a schedule to its end and checks the books after each step.
fn simulate(schedule: &Schedule) -> (HashMap<JobId, Heard>, Scheduler) {
    let (mut scheduler, mut device) = (scheduler(&schedule.rules), executor(schedule));
    let (mut stepper, mut guides) = (Stepper::new(schedule.ahead), Guides::new(None, VOCAB));
    let mut heard: HashMap<JobId, Heard> = HashMap::new();
    let last_action = schedule.arrivals.iter().map(|a| a.at_step.max(a.cancel_at_step.unwrap_or(0))).max().unwrap_or(0);
    for now in 0.. {
        assert!(now < 20_000, "the schedule does not end");
        for arrival in &schedule.arrivals {
            if arrival.at_step == now {
                scheduler.submit(Work::new(arrival.job.clone()));
            }
            if arrival.cancel_at_step == Some(now) {
                scheduler.cancel(arrival.job.id);
            }
        }
        if schedule.lost_at_steps.contains(&now) {
            (device, stepper) = (executor(schedule), Stepper::new(schedule.ahead));
            let everybody = scheduler.jobs();
            assert_eq!(scheduler.recover(&everybody), []);
        }
        let report = step_or_idle(&mut stepper, &mut scheduler, &mut guides, &mut device);
        for (id, event) in report {
            heard.entry(id).or_default().note(event);
        }
        scheduler.check().unwrap();
        if now >= last_action && !scheduler.has_work() && !stepper.in_flight() {
            return (heard, scheduler);
        }
    }
    unreachable!()
}

fn step_or_idle(
    stepper: &mut Stepper,
    scheduler: &mut Scheduler,
    guides: &mut Guides,
    device: &mut ToyExecutor,
) -> Vec<(JobId, JobEvent)> {
    if !scheduler.has_work() && !stepper.in_flight() {
        return Vec::new();
    }
    stepper.step(scheduler, guides, device, &|_| ()).unwrap().events
}

impl Heard {
    fn note(&mut self, event: JobEvent) {
        if let JobEvent::Token(token) = &event {
            self.tokens.push(token.id);
        }
        self.events.push(event);
    }

    fn check(&self, job: &Job, context: usize) {
        let (expected, expected_reason) = toy::answer(VOCAB, context, job);
        assert_eq!(self.tokens, expected, "{} of {} prompt tokens", job.id, job.prompt.len());
        assert!(matches!(self.events[0], JobEvent::Started { .. }));
        let Some(JobEvent::Finished { reason, usage }) = self.events.last() else { panic!("{:?}", self.events) };
        assert_eq!(*reason, expected_reason);
        assert_eq!((usage.input_tokens, usage.output_tokens), (job.prompt.len() as u64, expected.len() as u64));
        assert!(usage.cached_tokens < usage.input_tokens);
        assert_eq!(self.events.len(), expected.len() + 2);
    }

    fn check_cancelled(&self, job: &Job, context: usize) {
        let (expected, _) = toy::answer(VOCAB, context, job);
        assert!(expected.starts_with(&self.tokens));
    }
}

/// Prompts that begin alike in several places, so that caches hit at many cuts.
fn prompts() -> impl Strategy<Value = Vec<u32>> {
    (0usize..3, 0usize..90, prop::collection::vec(1..VOCAB as u32, 1..40)).prop_map(|(family, shared, own)| {
        let shared = (0..shared).map(|n| (n * (family + 3) % (VOCAB - 1)) as u32 + 1);
        shared.chain(own).collect()
    })
}

fn arrivals() -> impl Strategy<Value = Arrival> {
    let who = (0usize..3, prop::sample::select(vec![Class::Interactive, Class::Standard, Class::Batch]), 1u32..5);
    let when = (0usize..40, prop::option::weighted(0.2, 0usize..60));
    (prompts(), who, when, 1u32..60, 0u64..3).prop_map(|(prompt, who, when, max_tokens, seed)| {
        let mut job = job(0, ["a", "b", "c"][who.0], prompt, max_tokens);
        (job.class, job.weight, job.sampling.seed) = (who.1, who.2, seed);
        Arrival { at_step: when.0, job, cancel_at_step: when.1.map(|later| when.0 + later) }
    })
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let sizes = (1usize..40, 1usize..9, 0usize..80, any::<bool>(), 0u32..4);
    let lost = prop::collection::vec(0usize..60, 0..3);
    let all = (sizes, prop::collection::vec(arrivals(), 1..14), lost, any::<bool>());
    all.prop_map(|(sizes, mut arrivals, lost_at_steps, ahead)| {
        let (num_blocks, max_seqs, more_tokens, prefix_cache, max_preemptions) = sizes;
        let rules = Rules { prefix_cache, max_preemptions, ..rules(num_blocks, max_seqs + more_tokens, max_seqs) };
        for (number, arrival) in arrivals.iter_mut().enumerate() {
            arrival.job.id = JobId(number as u64);
            arrival.job.prompt.truncate(rules.context - 1);
        }
        Schedule { rules, ahead, arrivals, lost_at_steps, faults: Faults::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_schedule_a_job_gets_the_same_tokens(schedule in schedules()) {
        let (heard, scheduler) = simulate(&schedule);
        for arrival in &schedule.arrivals {
            let nothing = Heard::default();
            let heard = heard.get(&arrival.job.id).unwrap_or(&nothing);
            match arrival.cancel_at_step {
                None => heard.check(&arrival.job, schedule.rules.context),
                Some(_) => heard.check_cancelled(&arrival.job, schedule.rules.context),
            }
        }
        prop_assert_eq!(scheduler.snapshot().kv_blocks_used, 0);
    }

    #[test]
    fn a_storm_of_cancellations_leaves_no_block_used(mut schedule in schedules(), at in 0usize..40) {
        for arrival in &mut schedule.arrivals {
            arrival.cancel_at_step = Some(arrival.at_step + at % (arrival.job.prompt.len() + 1));
        }
        let (_, scheduler) = simulate(&schedule);
        let snapshot = scheduler.snapshot();
        prop_assert_eq!((snapshot.kv_blocks_used, snapshot.running, snapshot.waiting), (0, 0, 0));
    }
}

fn all_at_once(rules: Rules, jobs: Vec<Job>) -> Schedule {
    let arrivals = jobs.into_iter().map(|job| Arrival { at_step: 0, job, cancel_at_step: None }).collect();
    Schedule { rules, ahead: false, arrivals, lost_at_steps: Vec::new(), faults: Faults::default() }
}

/// A job that never draws a stop token, so that its length is known.
fn endless(id: u64, tenant: &str, prompt_len: usize, max_tokens: u32) -> Job {
    let prompt = (0..prompt_len).map(|n| (n as u32 * 7 + id as u32) % 39 + 1).collect();
    Job { stop_token_ids: Vec::new(), ..job(id, tenant, prompt, max_tokens) }
}

#[test]
fn a_pool_too_small_for_all_preempts_and_everybody_ends_right() {
    let jobs = (0..4).map(|id| endless(id, "a", 40, 60)).collect();
    let schedule = all_at_once(rules(14, 32, 4), jobs);
    let (heard, scheduler) = simulate(&schedule);
    schedule.arrivals.iter().for_each(|a| heard[&a.job.id].check(&a.job, schedule.rules.context));
    assert!(scheduler.snapshot().counters.preemptions > 0);
}

#[test]
fn a_second_job_finds_the_full_blocks_of_the_first() {
    let first = endless(1, "a", 70, 2);
    let second = Job { id: JobId(2), ..first.clone() };
    let mut schedule = all_at_once(rules(30, 64, 4), vec![first, second]);
    schedule.arrivals[1].at_step = 10;
    let (heard, _) = simulate(&schedule);
    assert_eq!(heard[&JobId(1)].events[0], JobEvent::Started { cached_tokens: 0 });
    assert_eq!(heard[&JobId(2)].events[0], JobEvent::Started { cached_tokens: 64 });
}

#[test]
fn a_prompt_that_is_cached_whole_still_computes_its_last_block() {
    let first = endless(1, "a", 64, 1);
    let second = Job { id: JobId(2), ..first.clone() };
    let mut schedule = all_at_once(rules(30, 64, 4), vec![first, second]);
    schedule.arrivals[1].at_step = 10;
    let (heard, _) = simulate(&schedule);
    assert_eq!(heard[&JobId(2)].events[0], JobEvent::Started { cached_tokens: 48 });
}

#[test]
fn the_next_turn_of_a_conversation_finds_the_answer_of_the_last() {
    let first = endless(1, "a", 20, 30);
    let (answer, _) = toy::answer(VOCAB, 200, &first);
    let prompt = [first.prompt.clone(), answer, vec![5; 10]].concat();
    let second = Job { id: JobId(2), prompt, ..first.clone() };
    let mut schedule = all_at_once(rules(30, 64, 4), vec![first, second]);
    schedule.arrivals[1].at_step = 50;
    let (heard, _) = simulate(&schedule);
    assert_eq!(heard[&JobId(2)].events[0], JobEvent::Started { cached_tokens: 48 });
}

#[test]
fn tenants_cannot_hit_each_others_cache() {
    let first = endless(1, "a", 70, 2);
    let second = Job { id: JobId(2), tenant: TenantId::new("b"), ..first.clone() };
    let mut schedule = all_at_once(rules(30, 64, 4), vec![first, second]);
    schedule.arrivals[1].at_step = 10;
    let (heard, scheduler) = simulate(&schedule);
    assert_eq!(heard[&JobId(2)].events[0], JobEvent::Started { cached_tokens: 0 });
    assert_eq!(scheduler.snapshot().counters.prefix_hits, 0);
}

#[test]
fn a_lost_device_loses_the_cache_and_no_token() {
    let jobs = (0..3).map(|id| endless(id, "a", 40, 30)).collect();
    let schedule = Schedule { lost_at_steps: vec![1, 5, 9], ..all_at_once(rules(30, 32, 4), jobs) };
    let (heard, _) = simulate(&schedule);
    schedule.arrivals.iter().for_each(|a| heard[&a.job.id].check(&a.job, schedule.rules.context));
}

#[test]
fn a_step_ahead_of_a_stop_token_is_dropped_and_its_blocks_come_back() {
    // Jobs whose answers end by a stop token at all kinds of places, while others go on.
    let prompts = (0..40u32).map(|n| (1..=n % 37 + 1).map(|i| (i * 3 + n) % 39 + 1).collect());
    let jobs: Vec<Job> = prompts.enumerate().map(|(id, prompt)| job(id as u64, "a", prompt, 60)).collect();
    let stopped = |job: &Job| toy::answer(VOCAB, 200, job).1 == tidegate_types::FinishReason::Stop;
    assert!(jobs.iter().filter(|job| stopped(job)).count() > 20, "too few answers stop");
    let schedule = Schedule { ahead: true, ..all_at_once(rules(60, 64, 6), jobs) };
    let (heard, scheduler) = simulate(&schedule);
    schedule.arrivals.iter().for_each(|a| heard[&a.job.id].check(&a.job, schedule.rules.context));
    assert_eq!(scheduler.snapshot().kv_blocks_used, 0);
}

#[test]
fn nobody_is_preempted_while_a_step_is_computed() {
    let jobs = (0..4).map(|id| endless(id, "a", 40, 60)).collect();
    let schedule = Schedule { ahead: true, ..all_at_once(rules(14, 32, 4), jobs) };
    let (heard, scheduler) = simulate(&schedule);
    schedule.arrivals.iter().for_each(|a| heard[&a.job.id].check(&a.job, schedule.rules.context));
    assert!(scheduler.snapshot().counters.preemptions > 0);
}

#[test]
fn answers_to_one_prompt_compute_it_once_ahead_too() {
    let jobs: Vec<Job> = (0..5).map(|id| Job { id: JobId(id), ..endless(1, "a", 60, 5) }).collect();
    // The first is computed in one step: its blocks are not found yet when the second step is planned.
    let schedule = Schedule { ahead: true, ..all_at_once(rules(60, 64, 8), jobs) };
    let (heard, _) = simulate(&schedule);
    let cached = |id| matches!(heard[&JobId(id)].events[0], JobEvent::Started { cached_tokens: 48 });
    assert!((1..5).all(cached), "{:?}", heard.values().map(|h| &h.events[0]).collect::<Vec<_>>());
}

#[test]
fn the_plan_ahead_is_the_next_steps_and_takes_an_unknown_token_for_one() {
    let rules = rules(30, 32, 4);
    let mut scheduler = scheduler(&rules);
    scheduler.submit(Work::new(endless(1, "a", 40, 3)));
    let item = |start, num_tokens, samples| Item { id: JobId(1), start, num_tokens, samples };
    let first = scheduler.plan();
    assert_eq!(first.items, [item(0, 32, false)]);
    let second = scheduler.plan_ahead().unwrap();
    assert_eq!(second.items, [item(32, 8, true)]);
    let nothing = Outcome::Computed(None);
    assert_eq!(scheduler.apply(&first, vec![nothing]), []);
    let third = scheduler.plan_ahead().unwrap();
    assert_eq!(third.items, [item(40, 1, true)]);
    let token = |id| Outcome::Computed(Some(SampledToken { id, logprob: None, top: Vec::new() }));
    scheduler.apply(&second, vec![token(9)]);
    let fourth = scheduler.plan_ahead().unwrap();
    assert_eq!(fourth.items, [item(41, 1, true)]);
    scheduler.apply(&third, vec![token(8)]);
    assert_eq!(scheduler.plan_ahead(), None, "the last token of three is being drawn");
    // Cancelled while it is computed: its blocks wait for the step.
    scheduler.cancel(JobId(1));
    assert_eq!(scheduler.snapshot().kv_blocks_used, 3);
    assert_eq!(scheduler.apply(&fourth, vec![token(7)]), []);
    assert_eq!(scheduler.snapshot().kv_blocks_used, 0);
    scheduler.check().unwrap();
}
