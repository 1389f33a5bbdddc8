//! Whether a model ever takes all prompts of a request at once.

use super::{Came, Refused};
use crate::gate::Gate;
use crate::states::Equipped;
use std::sync::Arc;
use tidegate_types::{Quota, Reject};

/// Refuses more prompts than their model ever takes at once: those who came again and again would take its turns from all.
pub(super) fn check(gate: &Gate, came: Vec<Came>) -> Result<Vec<Came>, Refused> {
    let routed = came.iter().filter_map(Came::for_one_model);
    let too_many = routed.clone().find_map(|(model, _)| {
        let of_model = routed.clone().filter(|(other, _)| Arc::ptr_eq(other, model));
        let asked: Vec<&Equipped> = of_model.map(|(_, equipped)| equipped).collect();
        let quota = model.quota.load();
        let too_many = too_many(&quota, &asked).or_else(|| too_long(gate, &quota, &asked))?;
        let message = format!("`prompt` has {} prompts for model `{}`, {too_many}", asked.len(), model.name);
        Some(Reject::invalid("prompt", message).code("array_above_max_length"))
    });
    match too_many {
        None => Ok(came),
        Some(reject) => Err(Refused { came: came.into_iter().map(Some).collect(), reject: Box::new(reject) }),
    }
}

/// Why there are too many of them for their model.
fn too_many(quota: &Quota, asked: &[&Equipped]) -> Option<String> {
    let rate = quota.requests_per_minute.map(|most| (most, "requests per minute (RPM)"));
    let running = quota.concurrency.map(|most| (u64::from(most), "requests at once"));
    let limits = [rate, running].into_iter().flatten();
    let (most, what) = limits.filter(|(most, _)| *most < asked.len() as u64).min()?;
    Some(format!(
        "each of which is a request to it, and its limit is {most} {what}; send at most {most} prompts in a request"
    ))
}

/// The same of their tokens. One that is too long alone is refused alone, for what it is.
fn too_long(gate: &Gate, quota: &Quota, asked: &[&Equipped]) -> Option<String> {
    let most = quota.tokens_per_minute?;
    let cost = |asked: &&Equipped| gate.cost(quota, &asked.request.chat, asked.tools.iter().map(|tool| &tool.def));
    let costs: Vec<u64> = asked.iter().map(cost).collect();
    let tokens: u64 = costs.iter().sum();
    (tokens > most && costs.iter().all(|cost| *cost <= most)).then(|| {
        format!(
            "which with their longest answers are {tokens} tokens, and its limit is {most} tokens per minute (TPM); send \
             fewer prompts in a request, or a smaller `max_tokens`"
        )
    })
}
