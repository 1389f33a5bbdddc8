//! What stages after generation are told and say: output guards, memory, observers.

use std::time::Duration;
use tidegate_types::{Finding, Message, Usage};

/// A whole answer to decide on.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// One message for each choice, with the ids `choice-0`, `choice-1`, ...
    pub choices: &'a [Message],
    /// In the order of `choices`.
    pub finish_reasons: &'a [&'a str],
    /// What it cost, where that is known.
    pub usage: Option<Usage>,
    /// More about it, as (key, JSON).
    pub attrs: &'a [(String, String)],
}

/// A question to a memory.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The question.
    pub text: &'a str,
    /// At most this many items.
    pub limit: u32,
}

/// Something remembered.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryItem {
    /// Unique within plugin and caller.
    pub id: String,
    /// What is remembered.
    pub text: String,
    /// Higher is better.
    pub score: Option<f32>,
}

/// A question and its answer, to be remembered.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    /// In the order in which they were said.
    pub messages: &'a [Message],
    /// More about it, as (key, JSON).
    pub attrs: &'a [(String, String)],
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Summary<'a> {
    /// `answered`, `failed`, `refused` or `client-gone`.
    pub outcome: &'a str,
    /// The finish reason, or the code of a failure.
    pub detail: &'a str,
    /// The model that answered; empty where none did.
    pub model: &'a str,
    /// What it cost.
    pub usage: Usage,
    /// Until the first event.
    pub first: Option<Duration>,
    /// Until the end.
    pub total: Duration,
    /// What all guards saw.
    pub findings: &'a [Finding],
    /// More about it, as (key, JSON).
    pub attrs: &'a [(String, String)],
}
