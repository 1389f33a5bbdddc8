//! How long one request may be: the bounds of its caller and of its model, beside what the model was made for.

use tidegate_types::{Chat, Quota, Reject, Scope};

/// A bound in tokens, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) tokens: u32,
    of: &'static str,
}

/// The tightest bounds of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LengthBounds {
    /// Of prompt plus answer.
    pub(crate) context: Option<Bound>,
    /// Of the answer.
    pub(crate) output: Option<Bound>,
}

impl LengthBounds {
    /// Of a caller's request to a model.
    pub(crate) fn of_caller(scope: &Scope, model: &Quota) -> Self {
        let Scope { key, project, tenant, user, .. } = scope;
        Self::tightest(&[("key", key), ("project", project), ("tenant", tenant), ("user", user), ("model", model)])
    }

    /// Of what the server itself asks a model.
    pub(crate) fn of_model(model: &Quota) -> Self {
        Self::tightest(&[("model", model)])
    }

    fn tightest(quotas: &[(&'static str, &Quota)]) -> Self {
        let min = |pick: fn(&Quota) -> Option<u32>| {
            let bounds = quotas.iter().filter_map(|(of, quota)| Some(Bound { tokens: pick(quota)?, of }));
            bounds.min_by_key(|bound| bound.tokens)
        };
        Self { context: min(|quota| quota.max_context_tokens), output: min(|quota| quota.max_output_tokens) }
    }

    /// Tokens of prompt and answer together, by a model that was made for so many.
    pub(crate) fn tightest_context(&self, model: u32) -> usize {
        self.context.map_or(model, |bound| bound.tokens.min(model)) as usize
    }

    /// The same where the model may not say for how many it was made, which is 0; `None` where nothing else bounds it.
    pub(crate) fn window(&self, model: u32) -> Option<u32> {
        let bound = self.context.map(|bound| bound.tokens);
        bound.into_iter().chain((model > 0).then_some(model)).min()
    }

    /// Refuses a request that asks for a longer answer than it may get: a shorter one than asked for would be a surprise.
    pub(crate) fn check_output(&self, chat: &Chat) -> Result<(), Reject> {
        let (Some(asked), Some(Bound { tokens, of })) = (chat.max_tokens, self.output) else { return Ok(()) };
        if asked <= tokens {
            return Ok(());
        }
        let field = chat.fields.max_tokens;
        let message = format!("{field} is {asked}; the limit of this {of} is {tokens}; ask for at most that");
        Err(Reject::invalid(field, message).code("max_tokens_exceeded"))
    }

    /// Refuses a prompt of `num_tokens`, counted or `about` as many, that leaves no room for an answer.
    pub(crate) fn check_prompt(&self, num_tokens: u64, about: &str) -> Result<(), Reject> {
        let Some(Bound { tokens, of }) = self.context.filter(|bound| num_tokens >= u64::from(bound.tokens)) else {
            return Ok(());
        };
        let message = format!(
            "prompt has {about}{num_tokens} tokens; the limit of this {of} is {tokens}, and the answer needs one of them"
        );
        Err(Reject::invalid("messages", message).code("context_length_exceeded"))
    }

    /// Refuses a text of `num_tokens`, counted or `about` as many, of which a vector is asked: that needs no room.
    pub(crate) fn check_text(&self, num_tokens: u64, about: &str) -> Result<(), Reject> {
        match self.context.filter(|bound| num_tokens > u64::from(bound.tokens)) {
            None => Ok(()),
            Some(Bound { tokens, of }) => {
                let message = format!("a text has {about}{num_tokens} tokens; the limit of this {of} is {tokens}");
                Err(Reject::invalid("input", message).code("context_length_exceeded"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::FieldNames;

    #[test]
    fn a_longer_answer_is_refused_by_the_field_that_asked_for_it() {
        let bounds = LengthBounds::of_model(&Quota { max_output_tokens: Some(10), ..Quota::default() });
        for field in ["max_tokens", "max_output_tokens"] {
            let fields = FieldNames { max_tokens: field, ..FieldNames::default() };
            let chat = Chat { max_tokens: Some(11), fields, ..Chat::new("m", Vec::new()) };
            let refused = bounds.check_output(&chat).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(field));
            assert!(refused.message.starts_with(&format!("{field} is 11;")), "{refused}");
        }
    }

    #[test]
    fn the_tightest_bound_counts_and_is_named() {
        let quota =
            |max_context_tokens, max_output_tokens| Quota { max_context_tokens, max_output_tokens, ..Quota::default() };
        let scope = Scope { key: quota(Some(100), Some(20)), tenant: quota(Some(50), None), ..Scope::default() };
        let bounds = LengthBounds::of_caller(&scope, &quota(None, Some(10)));
        let refused = bounds.check_prompt(50, "").unwrap_err();
        assert!(refused.message.contains("this tenant is 50"), "{refused}");
        assert!(bounds.check_prompt(49, "").is_ok());
        assert_eq!(bounds.output, Some(Bound { tokens: 10, of: "model" }));
        assert_eq!(LengthBounds::of_caller(&Scope::default(), &Quota::default()), LengthBounds::default());
    }
}
