//! Orders the models that could serve a request.

use crate::plugin::{Error, Plugin};
use crate::types::{Attrs, Context, Finding, Message};

/// A router.
pub trait Router: Plugin {
    /// Called once per request that asks for the model `auto`. Every id of the answer must have been offered.
    ///
    /// # Errors
    /// When the router cannot decide; the stage's `on_error` then does.
    fn route(&self, ctx: &Context, request: &RouteRequest, candidates: &[Candidate]) -> Result<Decision, Error>;
}

/// What to decide on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteRequest {
    /// The conversation.
    pub messages: Vec<Message>,
    /// Estimated tokens of the prompt.
    pub prompt_tokens: u32,
    /// What the guards saw.
    pub findings: Vec<Finding>,
    /// `class` and `key` (the name) of the caller, `tools` (whether the request has some), as key and JSON; more may come.
    pub attrs: Attrs,
}

/// A model that could serve the request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Named in the decision.
    pub id: String,
    /// The model's name.
    pub model: String,
    /// Answers at present.
    pub healthy: bool,
    /// Its window, in tokens; 0 where it is not known.
    pub context_tokens: u32,
    /// `running` and `waiting` (requests of a built-in engine), `outstanding` (requests at an upstream's servers), `kind`
    /// (`engine` or `upstream`), as key and JSON; more may come.
    pub attrs: Attrs,
}

impl Candidate {
    /// Whether a prompt of so many tokens fits; where the window is not known, any does.
    pub fn fits(&self, prompt_tokens: u32) -> bool {
        self.context_tokens == 0 || prompt_tokens <= self.context_tokens
    }
}

/// What of `wanted` was offered, in its order, else of `default`; nothing where neither was.
pub fn offered<'c>(wanted: &[String], default: &[String], candidates: &'c [Candidate]) -> Vec<&'c Candidate> {
    let of = |ids: &[String]| -> Vec<&'c Candidate> {
        ids.iter().filter_map(|id| candidates.iter().find(|candidate| candidate.id == *id)).collect()
    };
    let wanted = of(wanted);
    if wanted.is_empty() { of(default) } else { wanted }
}

/// Ids at their first place: the host refuses an order that has one twice, and settings may name one twice.
pub fn each_once(order: &[&Candidate]) -> Vec<String> {
    let mut ids: Vec<String> = Vec::with_capacity(order.len());
    for candidate in order {
        if !ids.contains(&candidate.id) {
            ids.push(candidate.id.clone());
        }
    }
    ids
}

/// An order of candidates: the first serves, the rest are fallbacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Candidate ids.
    pub order: Vec<String>,
    /// For logs and the operator.
    pub reason: String,
    /// Read by nobody, so far.
    pub attrs: Attrs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_stands_in_where_nothing_wanted_was_offered() {
        let candidates = ["a", "b"].map(|id| Candidate { id: id.into(), ..Candidate::default() });
        let ids = |wanted: &[&str], default: &[&str]| {
            let [wanted, default] =
                [wanted, default].map(|ids| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
            each_once(&offered(&wanted, &default, &candidates))
        };
        assert_eq!(ids(&["b", "x", "b"], &["a"]), ["b"]);
        assert_eq!(ids(&["x"], &["a", "b"]), ["a", "b"]);
        assert_eq!(ids(&["x"], &["y"]), [""; 0]);
    }
}
