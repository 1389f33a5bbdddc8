//! The one validator at the engine's door. Past it, a job's values are trusted.

use crate::config::ModelFacts;
use crate::sequence::Work;
use tidegate_types::{Reject, SamplingParams};

/// Refuses a job that cannot run on this model.
pub(crate) fn validate(work: &Work, facts: &ModelFacts, context: usize) -> Result<(), Reject> {
    let job = &work.job;
    check_some(&job.prompt)?;
    match (facts.pooling, job.max_tokens) {
        (None, 0) => return Err(Reject::invalid("max_tokens", "max_tokens is 0; it must be at least 1")),
        (Some(_), 1..) => {
            let message = format!("model `{}` makes vectors and no tokens", facts.name);
            return Err(Reject::invalid("model", message).code("unsupported_model"));
        }
        _ => {}
    }
    if job.grammar.is_some() && (job.stop_token_ids.is_empty() || job.max_tokens == 0) {
        let message = format!("answers of model `{}` cannot be held to a schema: no token ends them", facts.name);
        return Err(Reject::invalid("response_format", message).code("unsupported_parameter"));
    }
    check_length(work, facts, context)?;
    check_ids(job.prompt.iter().chain(&work.emitted), facts)?;
    check_sampling(&job.sampling, facts)
}

/// Refuses a prompt for a vector by all that [`validate`] would.
pub(crate) fn check_for_vector(prompt: &[u32], facts: &ModelFacts, context: usize) -> Result<(), Reject> {
    check_some(prompt)?;
    check_prompt(prompt.len(), facts, context, false)?;
    check_ids(prompt, facts)
}

fn check_some(prompt: &[u32]) -> Result<(), Reject> {
    if prompt.is_empty() { Err(Reject::invalid("messages", "the prompt has no tokens")) } else { Ok(()) }
}

fn check_ids<'a>(ids: impl IntoIterator<Item = &'a u32>, facts: &ModelFacts) -> Result<(), Reject> {
    match ids.into_iter().find(|id| **id as usize >= facts.vocab) {
        None => Ok(()),
        Some(id) => {
            let message = format!("token {id} is not of model `{}`, which has {}", facts.name, facts.vocab);
            Err(Reject::invalid("prompt", message))
        }
    }
}

fn check_length(work: &Work, facts: &ModelFacts, context: usize) -> Result<(), Reject> {
    let wants_tokens = work.job.max_tokens > 0;
    if wants_tokens && work.emitted.len() >= work.job.max_tokens as usize {
        let (done, most) = (work.emitted.len(), work.job.max_tokens);
        let message = format!("{done} tokens were generated already; max_tokens is {most}");
        return Err(Reject::invalid("messages", message).code("context_length_exceeded"));
    }
    check_prompt(work.num_tokens(), facts, context, wants_tokens)
}

/// Refuses a prompt that is longer than a job may have.
pub(crate) fn check_prompt(
    num_tokens: usize,
    facts: &ModelFacts,
    context: usize,
    wants_tokens: bool,
) -> Result<(), Reject> {
    if num_tokens <= context - usize::from(wants_tokens) {
        return Ok(());
    }
    Err(too_long(&num_tokens.to_string(), facts, context, wants_tokens))
}

/// Refuses a prompt by its number of tokens, which may be about that.
pub(crate) fn too_long(num_tokens: &str, facts: &ModelFacts, context: usize, wants_tokens: bool) -> Reject {
    let (name, most) = (&facts.name, context - usize::from(wants_tokens));
    let message = if context < facts.max_positions {
        format!(
            "prompt has {num_tokens} tokens; model `{name}` allows {most} here, for its cache holds {context}{} (engine.kv_cache_mib)",
            if wants_tokens { " and the answer needs one" } else { "" }
        )
    } else if !wants_tokens {
        format!("prompt has {num_tokens} tokens; model `{name}` allows {context}")
    } else {
        format!("prompt has {num_tokens} tokens; model `{name}` allows {context}, and the answer needs one of them")
    };
    Reject::invalid("messages", message).code("context_length_exceeded")
}

fn check_sampling(params: &SamplingParams, facts: &ModelFacts) -> Result<(), Reject> {
    let finite = |value: f32| value.is_finite();
    let checks = [
        ("temperature", finite(params.temperature) && params.temperature >= 0.0, "at least 0"),
        ("top_p", params.top_p > 0.0 && params.top_p <= 1.0, "above 0 and at most 1"),
        ("min_p", (0.0..=1.0).contains(&params.min_p), "between 0 and 1"),
        ("presence_penalty", finite(params.presence_penalty), "a finite number"),
        ("frequency_penalty", finite(params.frequency_penalty), "a finite number"),
        ("repetition_penalty", finite(params.repetition_penalty) && params.repetition_penalty > 0.0, "above 0"),
        ("logit_bias", params.logit_bias.iter().all(|(_, bias)| finite(*bias)), "made of finite numbers"),
    ];
    if let Some((name, _, rule)) = checks.iter().find(|(_, holds, _)| !holds) {
        return Err(Reject::invalid(*name, format!("{name} must be {rule}")));
    }
    if let Some((id, _)) = params.logit_bias.iter().find(|(id, _)| *id as usize >= facts.vocab) {
        let message = format!("logit_bias names token {id}; model `{}` has {}", facts.name, facts.vocab);
        return Err(Reject::invalid("logit_bias", message));
    }
    Ok(())
}
