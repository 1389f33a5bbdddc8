//! A plan as calls of the executor, and what came of each of its items.
//!
//! One job can never fail another: where a batch fails, each of its items is computed alone, and only those
//! that fail alone end; a row that cannot be drawn says so for itself. A lost device is the caller's to replace; a
//! panic in a backend counts as a lost device.

use crate::guides::Guides;
use crate::scheduler::{Item, Outcome, Plan, Scheduler};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tidegate_device::{Batch, BlockId, DeviceError, Drawn, Executor, SampleRow, Segment};
use tidegate_types::{Fault, JobId, Reject};

/// A plan that was computed, as `Scheduler::apply` takes it: without items that ended before they were.
#[derive(Debug)]
pub(crate) struct Computed {
    pub(crate) plan: Plan,
    pub(crate) outcomes: Vec<Outcome>,
}

/// Queues the items. Tokens that nobody knows yet are fed from the draw of the plan `before`, which is the last that was
/// queued. Which tokens may be drawn is found out while a device computes.
pub(crate) fn queue(
    scheduler: &Scheduler,
    guides: &mut Guides,
    executor: &mut dyn Executor,
    items: &[Item],
    before: Option<&Plan>,
) -> Result<(), DeviceError> {
    let drawn = before.into_iter().flat_map(|plan| plan.items.iter().filter(|item| item.samples));
    let rows: Vec<_> = drawn.map(|item| item.id).collect();
    let segment = |item: &Item| {
        let fed = rows.iter().position(|id| *id == item.id);
        Some(scheduler.sequence(item.id)?.segment(item.start, item.num_tokens, fed))
    };
    let batch = Batch { segments: items.iter().filter_map(segment).collect() };
    guarded(|| executor.forward(&batch))?;
    let masks = guides.masks(scheduler, items);
    let rows = rows_of(scheduler, &masks, items);
    guarded(|| executor.sample(&rows))
}

/// Waits for a plan that was queued.
pub(crate) fn collect(guides: &Guides, executor: &mut dyn Executor, plan: &Plan) -> Result<Computed, DeviceError> {
    let drawn = guarded(|| executor.collect())?;
    Ok(Computed { outcomes: outcomes(guides, &plan.items, drawn)?, plan: plan.clone() })
}

/// Computes a plan while nothing else is in flight; where that fails, item by item to find the culprit.
pub(crate) fn compute(
    scheduler: &Scheduler,
    guides: &mut Guides,
    executor: &mut dyn Executor,
    plan: &Plan,
) -> Result<Computed, DeviceError> {
    let alive = |item: &&Item| scheduler.is_in_flight(item.id);
    let plan = Plan { items: plan.items.iter().filter(alive).cloned().collect(), admitted: Vec::new() };
    let outcomes = match compute_items(scheduler, guides, executor, &plan.items) {
        Err(error @ DeviceError::Lost(_)) => return Err(error),
        Err(error) if plan.items.len() == 1 => vec![failed(&error.to_string())],
        Err(error) => {
            tracing::warn!(%error, items = plan.items.len(), "a step failed; computing its items one by one");
            let alone = plan.items.iter().map(|item| compute_alone(scheduler, guides, executor, item));
            alone.collect::<Result<_, DeviceError>>()?
        }
        Ok(outcomes) => outcomes,
    };
    Ok(Computed { plan, outcomes })
}

/// Computes one token that is nobody's, in a cache that nobody uses yet: what is lost over that is no job's fault.
pub(crate) fn try_out(executor: &mut dyn Executor) -> Result<(), DeviceError> {
    let segment = Segment { tokens: &[0], fed: None, start: 0, blocks: &[BlockId(0)], want_result: false };
    let batch = Batch { segments: vec![segment] };
    guarded(|| executor.forward(&batch))?;
    guarded(|| executor.sample(&[]))?;
    guarded(|| executor.collect()).map(drop)
}

fn compute_alone(
    scheduler: &Scheduler,
    guides: &mut Guides,
    executor: &mut dyn Executor,
    item: &Item,
) -> Result<Outcome, DeviceError> {
    match compute_items(scheduler, guides, executor, std::slice::from_ref(item)) {
        Ok(mut outcomes) => Ok(outcomes.pop().unwrap_or(Outcome::Computed(None))),
        Err(error @ DeviceError::Lost(_)) => Err(error),
        Err(error) => Ok(failed(&error.to_string())),
    }
}

fn compute_items(
    scheduler: &Scheduler,
    guides: &mut Guides,
    executor: &mut dyn Executor,
    items: &[Item],
) -> Result<Vec<Outcome>, DeviceError> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    queue(scheduler, guides, executor, items, None)?;
    let drawn = guarded(|| executor.collect())?;
    if scheduler.pooling().is_some() { rows_kept(executor, items) } else { outcomes(guides, items, drawn) }
}

/// The rows that a model which makes vectors kept of each item. Nothing is drawn from them.
fn rows_kept(executor: &dyn Executor, items: &[Item]) -> Result<Vec<Outcome>, DeviceError> {
    let outcome = |(segment, item): (usize, &Item)| {
        let rows: Vec<_> = (0..).map_while(|row| executor.vector(segment, row)).map(<[f32]>::to_vec).collect();
        if item.samples && rows.is_empty() {
            return Err(DeviceError::BadBatch(format!("segment {segment} kept no vector")));
        }
        Ok(Outcome::Rows(rows))
    };
    items.iter().enumerate().map(outcome).collect()
}

/// Deals the drawn tokens out to the items that sample.
fn outcomes(guides: &Guides, items: &[Item], drawn: Vec<Drawn>) -> Result<Vec<Outcome>, DeviceError> {
    let num_rows = items.iter().filter(|item| item.samples).count();
    if drawn.len() != num_rows {
        return Err(DeviceError::BadBatch(format!("{} tokens for {num_rows} rows", drawn.len())));
    }
    let mut drawn = drawn.into_iter();
    let outcome = |item: &Item| match if item.samples { drawn.next() } else { None } {
        None => Outcome::Computed(None),
        Some(_) if guides.is_put_off(item.id) => Outcome::PutOff,
        Some(Ok(token)) => match guides.failure(item.id) {
            Some(reject) => Outcome::Failed(reject.clone()),
            None => Outcome::Computed(Some(token)),
        },
        Some(Err(error)) => failed(&error.to_string()),
    };
    Ok(items.iter().map(outcome).collect())
}

fn rows_of<'a>(scheduler: &'a Scheduler, masks: &'a HashMap<JobId, Vec<u32>>, items: &[Item]) -> Vec<SampleRow<'a>> {
    let draws = scheduler.pooling().is_none();
    let sampling = items.iter().enumerate().filter(|(_, item)| draws && item.samples);
    let rows = sampling.filter_map(|(segment, item)| {
        let sequence = scheduler.sequence(item.id)?;
        Some(SampleRow {
            segment,
            params: sequence.sampling(),
            position: item.start + item.num_tokens,
            prompt: sequence.prompt(),
            output: sequence.output(),
            mask: masks.get(&item.id).map(Vec::as_slice),
        })
    });
    rows.collect()
}

/// A backend that panics is a device that is lost.
fn guarded<T>(call: impl FnOnce() -> Result<T, DeviceError>) -> Result<T, DeviceError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(DeviceError::Lost(panic_message(&*panic))))
}

fn failed(error: &str) -> Outcome {
    tracing::error!(error, "a job failed on the device");
    Outcome::Failed(Reject::internal(Fault::Engine, error))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the backend panicked: {}", text.unwrap_or("without a message"))
}
