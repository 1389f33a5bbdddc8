//! Models that make vectors: whatever the schedule, a job gets the same vector, or the failure that is its own.
//!
//! A device that is lost, a preemption or a neighbour that fails in the middle of a mean shows as another mean.

use super::{Arrival, Heard, Schedule, VOCAB, all_at_once, job, rules, schedules, simulate};
use proptest::prelude::*;
use tidegate_engine::scheduler::Rules;
use tidegate_engine::toy::{self, Faults};
use tidegate_types::{FinishReason, Job, JobEvent, Pooling, Usage};

/// One of the tokens that prompts are made of, or none.
fn poison() -> impl Strategy<Value = Option<u32>> {
    prop::option::weighted(0.4, 1..VOCAB as u32)
}

/// The schedules of the others, with jobs for vectors. No step is planned ahead, as in the engine's loop.
fn vector_schedules() -> impl Strategy<Value = Schedule> {
    let pooling = prop::sample::select(vec![Pooling::LastToken, Pooling::Mean]);
    (schedules(), pooling, poison(), poison()).prop_map(|(schedule, pooling, poison_forward, poison_row)| {
        let faults = Faults { poison_forward, poison_row, ..Faults::default() };
        let arrivals = schedule.arrivals.into_iter();
        let arrivals = arrivals.map(|arrival| Arrival { job: for_a_vector(arrival.job), ..arrival }).collect();
        Schedule { rules: with_vectors(schedule.rules, pooling), ahead: false, arrivals, faults, ..schedule }
    })
}

fn for_a_vector(job: Job) -> Job {
    Job { max_tokens: 0, stop_token_ids: Vec::new(), ..job }
}

/// The cache has keys and values, and a mean needs the rows themselves: see `Rules::new`.
fn with_vectors(rules: Rules, pooling: Pooling) -> Rules {
    Rules { prefix_cache: rules.prefix_cache && pooling != Pooling::Mean, pooling: Some(pooling), ..rules }
}

/// What is said of a job that is not cancelled. Where it fails it says so first and last.
fn check(heard: &Heard, job: &Job, schedule: &Schedule) {
    let Faults { poison_forward, poison_row, .. } = schedule.faults;
    let holds = |poison: Option<u32>| poison.is_some_and(|poison| job.prompt.contains(&poison));
    let what = format!("{} of {} tokens", job.id, job.prompt.len());
    if holds(poison_forward) || holds(poison_row) {
        let [JobEvent::Failed(reject)] = &heard.events[..] else { panic!("{what}: {:?}", heard.events) };
        let cause = format!("{reject:?}");
        let told = holds(poison_forward) && cause.contains("told to fail on this token");
        let not_finite = format!("the vector of {} has a number that is not finite", job.id);
        assert!(told || (holds(poison_row) && cause.contains(&not_finite)), "{what}: {cause}");
        return;
    }
    let [JobEvent::Started { .. }, JobEvent::Vector(vector), JobEvent::Finished { reason, usage }] = &heard.events[..]
    else {
        panic!("{what}: {:?}", heard.events)
    };
    let pooling = schedule.rules.pooling.unwrap();
    assert_eq!(*vector, toy::vector(pooling, &job.prompt), "{what}");
    let (input_tokens, cached_tokens) = (job.prompt.len() as u64, usage.cached_tokens);
    assert_eq!(*usage, Usage { input_tokens, cached_tokens, ..Usage::default() });
    assert!(*reason == FinishReason::Stop && cached_tokens < input_tokens, "{what}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_schedule_a_job_gets_the_same_vector(schedule in vector_schedules()) {
        let (heard, scheduler) = simulate(&schedule);
        for arrival in &schedule.arrivals {
            match heard.get(&arrival.job.id) {
                Some(heard) => check(heard, &arrival.job, &schedule),
                None => prop_assert!(arrival.cancel_at_step.is_some(), "{} was forgotten", arrival.job.id),
            }
        }
        prop_assert_eq!(scheduler.snapshot().kv_blocks_used, 0);
    }
}

/// A job whose prompt is its own.
fn of_length(id: u64, prompt_len: usize) -> Job {
    let prompt = (0..prompt_len).map(|n| (n as u32 * 7 + id as u32) % 39 + 1).collect();
    for_a_vector(job(id, "a", prompt, 1))
}

#[test]
fn a_device_that_is_lost_within_a_mean_costs_none_of_its_rows() {
    let jobs = (0..3).map(|id| of_length(id, 60 + id as usize)).collect();
    let rules = with_vectors(rules(30, 16, 4), Pooling::Mean);
    let schedule = Schedule { lost_at_steps: vec![1, 4, 9], ..all_at_once(rules, jobs) };
    let (heard, scheduler) = simulate(&schedule);
    schedule.arrivals.iter().for_each(|a| check(&heard[&a.job.id], &a.job, &schedule));
    let counters = scheduler.snapshot().counters;
    assert!(counters.computed_tokens > counters.prompt_tokens, "nothing was computed again");
}

/// The failing one shares a step with each of them.
#[test]
fn a_job_that_fails_takes_no_row_from_the_means_beside_it() {
    let sick = 39;
    let mut jobs: Vec<Job> = (0..3).map(|id| of_length(id, 40)).collect();
    jobs.iter_mut().for_each(|job| job.prompt.iter_mut().for_each(|token| *token = (*token).min(sick - 1)));
    jobs[1].prompt[25] = sick;
    for faults in [
        Faults { poison_forward: Some(sick), ..Faults::default() },
        Faults { poison_row: Some(sick), ..Faults::default() },
    ] {
        let rules = with_vectors(rules(30, 32, 4), Pooling::Mean);
        let schedule = Schedule { faults, ..all_at_once(rules, jobs.clone()) };
        let (heard, scheduler) = simulate(&schedule);
        schedule.arrivals.iter().for_each(|a| check(&heard[&a.job.id], &a.job, &schedule));
        let counters = scheduler.snapshot().counters;
        assert_eq!((counters.finished, counters.failed), (2, 1));
    }
}
