//! The engine's loop on one screen: plan, compute, apply.
//!
//! One job can never fail another: where a batch fails, each of its items is computed alone, and only those
//! that fail alone end; a row that cannot be drawn says so for itself. A lost device is the caller's to replace; a
//! panic in a backend counts as a lost device.

use crate::scheduler::{Event, Item, Outcome, Plan, Scheduler};
use crate::stats::Snapshot;
use serde::{Deserialize, Serialize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tidegate_device::{Batch, DeviceError, Drawn, Executor, SampleRow};
use tidegate_types::{Fault, JobId, Reject};

/// What a step did, as plain data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Jobs that left the queue for the first time.
    pub admitted: Vec<JobId>,
    /// What became of jobs.
    pub events: Vec<Event>,
    /// Figures after the step.
    pub snapshot: Snapshot,
}

/// The device was lost in a step.
#[derive(Debug)]
pub struct Lost {
    /// What it said.
    pub cause: DeviceError,
    /// The jobs that it was computing.
    pub blamed: Vec<JobId>,
}

/// Does one step.
pub fn step(scheduler: &mut Scheduler, executor: &mut dyn Executor) -> Result<StepReport, Lost> {
    let plan = scheduler.plan();
    carry_out(scheduler, executor, plan)
}

/// Computes a plan and applies the outcome.
pub fn carry_out(scheduler: &mut Scheduler, executor: &mut dyn Executor, plan: Plan) -> Result<StepReport, Lost> {
    let outcomes = compute(scheduler, executor, &plan)
        .map_err(|cause| Lost { cause, blamed: plan.items.iter().map(|item| item.id).collect() })?;
    let events = scheduler.apply(&plan, outcomes);
    Ok(StepReport { admitted: plan.admitted, events, snapshot: scheduler.snapshot() })
}

/// Computes a plan; where that fails, item by item to find the culprit.
fn compute(scheduler: &Scheduler, executor: &mut dyn Executor, plan: &Plan) -> Result<Vec<Outcome>, DeviceError> {
    match compute_items(scheduler, executor, &plan.items) {
        Err(error @ DeviceError::Lost(_)) => Err(error),
        Err(error) if plan.items.len() == 1 => Ok(vec![failed(&error.to_string())]),
        Err(error) => {
            tracing::warn!(%error, items = plan.items.len(), "a step failed; computing its items one by one");
            plan.items.iter().map(|item| compute_alone(scheduler, executor, item)).collect()
        }
        outcomes => outcomes,
    }
}

fn compute_alone(scheduler: &Scheduler, executor: &mut dyn Executor, item: &Item) -> Result<Outcome, DeviceError> {
    match compute_items(scheduler, executor, std::slice::from_ref(item)) {
        Ok(mut outcomes) => Ok(outcomes.pop().unwrap_or(Outcome::Computed(None))),
        Err(error @ DeviceError::Lost(_)) => Err(error),
        Err(error) => Ok(failed(&error.to_string())),
    }
}

fn compute_items(
    scheduler: &Scheduler,
    executor: &mut dyn Executor,
    items: &[Item],
) -> Result<Vec<Outcome>, DeviceError> {
    let segments = items.iter().filter_map(|item| Some(scheduler.sequence(item.id)?.segment(item.num_tokens)));
    let batch = Batch { segments: segments.collect() };
    let rows = rows_of(scheduler, items);
    let drawn = catch_unwind(AssertUnwindSafe(|| {
        executor.forward(&batch)?;
        executor.sample(&rows)?;
        executor.collect()
    }));
    let drawn = drawn.unwrap_or_else(|panic| Err(DeviceError::Lost(panic_message(&*panic))))?;
    outcomes(items, rows.len(), drawn)
}

/// Deals the drawn tokens out to the items that sample.
fn outcomes(items: &[Item], num_rows: usize, drawn: Vec<Drawn>) -> Result<Vec<Outcome>, DeviceError> {
    if drawn.len() != num_rows {
        return Err(DeviceError::BadBatch(format!("{} tokens for {num_rows} rows", drawn.len())));
    }
    let mut drawn = drawn.into_iter();
    let outcome = |item: &Item| match if item.samples { drawn.next() } else { None } {
        None => Outcome::Computed(None),
        Some(Ok(token)) => Outcome::Computed(Some(token)),
        Some(Err(error)) => failed(&error.to_string()),
    };
    Ok(items.iter().map(outcome).collect())
}

fn rows_of<'a>(scheduler: &'a Scheduler, items: &[Item]) -> Vec<SampleRow<'a>> {
    let sampling = items.iter().enumerate().filter(|(_, item)| item.samples);
    let rows = sampling.filter_map(|(segment, item)| {
        let sequence = scheduler.sequence(item.id)?;
        Some(SampleRow {
            segment,
            params: sequence.sampling(),
            position: sequence.computed + item.num_tokens,
            prompt: sequence.prompt(),
            output: sequence.output(),
            mask: None,
        })
    });
    rows.collect()
}

fn failed(error: &str) -> Outcome {
    tracing::error!(error, "a job failed on the device");
    Outcome::Failed(Reject::internal(Fault::Engine, error))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the backend panicked: {}", text.unwrap_or("without a message"))
}
