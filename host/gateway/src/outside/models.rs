//! `models` for plugins: the models of the config, asked as the tenant's work.

use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use tidegate_ledger::Ledger;
use tidegate_pipeline::ask::{Asked, Asking};
use tidegate_pipeline::{Gate, Models, RequestContext};
use tidegate_sandbox::capability::{BoxFuture, CapabilityError, Labels, ModelAsk, ModelReply, ModelService};
use tidegate_types::{Chat, Fault, Message, Quota, Reject, RejectKind, Retention, ToolChoice};

/// Tokens of an answer where neither the plugin nor the model has a bound.
const MAX_TOKENS: u32 = 1024;

/// Answers for the models that run.
pub struct PluginModels {
    /// What can be asked.
    pub models: Models,
    /// Where their limits are counted.
    pub gate: Gate,
    /// Where what that costs is written down.
    pub ledger: Option<Arc<Ledger>>,
}

impl PluginModels {
    fn asking<'a>(&'a self, model: &str, cx: &'a RequestContext) -> Result<Asking<'a>, CapabilityError> {
        let model = self.models.get(model).map_err(failure)?;
        Ok(Asking { model, cx, gate: &self.gate, ledger: self.ledger.as_ref() })
    }
}

impl ModelService for PluginModels {
    fn check(&self, model: &str) -> Result<(), String> {
        self.models.get(model).map(|_| ()).map_err(|reject| reject.message)
    }

    fn embed(&self, ask: ModelAsk, texts: Vec<String>) -> BoxFuture<'_, Result<Vec<Vec<f32>>, CapabilityError>> {
        Box::pin(async move {
            let (model, cx) = behalf(ask)?;
            self.asking(&model, &cx)?.embed(texts).await.map_err(failure)
        })
    }

    fn complete(
        &self,
        ask: ModelAsk,
        messages: Vec<Message>,
        params: Map<String, Value>,
    ) -> BoxFuture<'_, Result<ModelReply, CapabilityError>> {
        Box::pin(async move {
            let (model, cx) = behalf(ask)?;
            let mut chat = chat(&model, messages, params)?;
            let asking = self.asking(&model, &cx)?;
            chat.max_tokens.get_or_insert(unasked_tokens(&asking.model.quota.load()));
            let asked = asking.complete(&Arc::new(chat)).await.map_err(failure)?;
            let Asked { text, finish, usage } = asked;
            Ok(ModelReply { text, finish_reason: finish.as_str().into(), usage: usage.unwrap_or_default() })
        })
    }

    fn classify(&self, ask: ModelAsk, texts: Vec<String>) -> BoxFuture<'_, Result<Vec<Labels>, CapabilityError>> {
        Box::pin(async move {
            let (model, cx) = behalf(ask)?;
            self.asking(&model, &cx)?.classify(texts).await.map_err(failure)
        })
    }
}

/// The model's name, and on whose behalf it is asked: a request of its own.
fn behalf(ask: ModelAsk) -> Result<(String, RequestContext), CapabilityError> {
    let ModelAsk { model, caller, request_id, hops, .. } = ask;
    let generation = generation().ok_or_else(|| CapabilityError::Unavailable("no random numbers".into()))?;
    // Nothing follows it that could keep anything.
    let (retention, began) = (Retention::Nothing, Instant::now());
    let cx = RequestContext {
        request_id,
        generation,
        began,
        caller,
        retention,
        hops,
        history: None,
        notebook: None,
        aborted: Arc::default(),
    };
    Ok((model, cx))
}

/// A name for one answer that no other has.
fn generation() -> Option<Arc<str>> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(format!("ask-{:032x}", u128::from_le_bytes(bytes)).into())
}

/// For `tidegate check`, which loads no weights: knows names, answers nothing.
pub struct KnownModels(pub BTreeSet<String>);

fn not_running<T: Send + 'static>() -> BoxFuture<'static, Result<T, CapabilityError>> {
    Box::pin(std::future::ready(Err(CapabilityError::Unavailable("no model runs".into()))))
}

impl ModelService for KnownModels {
    fn check(&self, model: &str) -> Result<(), String> {
        match self.0.contains(model) {
            true => Ok(()),
            false => Err(format!("the model `{model}` does not exist")),
        }
    }

    fn embed(&self, _: ModelAsk, _: Vec<String>) -> BoxFuture<'_, Result<Vec<Vec<f32>>, CapabilityError>> {
        not_running()
    }

    fn complete(
        &self,
        _: ModelAsk,
        _: Vec<Message>,
        _: Map<String, Value>,
    ) -> BoxFuture<'_, Result<ModelReply, CapabilityError>> {
        not_running()
    }

    fn classify(&self, _: ModelAsk, _: Vec<String>) -> BoxFuture<'_, Result<Vec<Labels>, CapabilityError>> {
        not_running()
    }
}

/// What a plugin asks of a model as a chat; refused is what no server takes.
pub(crate) fn chat(model: &str, messages: Vec<Message>, params: Map<String, Value>) -> Result<Chat, CapabilityError> {
    let mut chat = Chat {
        tool_choice: ToolChoice::None,
        parallel_tool_calls: Some(false),
        stream: true,
        ..Chat::new(model, messages)
    };
    if chat.messages.is_empty() {
        return Err(CapabilityError::Invalid("there are no messages".into()));
    }
    // As in OpenAI's API, null is what was not given.
    for (name, value) in params.into_iter().filter(|(_, value)| !value.is_null()) {
        let bad = || CapabilityError::Invalid(format!("`{name}` cannot be {value}"));
        match name.as_str() {
            "max_tokens" => chat.max_tokens = Some(count(&value).filter(|tokens| *tokens > 0).ok_or_else(bad)?),
            "temperature" => chat.sampling.temperature = Some(number(&value, 0.0, 2.0).ok_or_else(bad)?),
            "top_p" => chat.sampling.top_p = Some(number(&value, 0.0, 1.0).ok_or_else(bad)?),
            "seed" => chat.sampling.seed = Some(value.as_i64().ok_or_else(bad)? as u64),
            "stop" => chat.stop = stops(&value).ok_or_else(bad)?,
            _ => return Err(CapabilityError::Invalid(format!("there is no parameter `{}`", name.escape_debug()))),
        }
    }
    Ok(chat)
}

/// Tokens of an answer for which the plugin gives no bound: never more than the model gives, which would be refused.
fn unasked_tokens(model: &Quota) -> u32 {
    model.max_output_tokens.map_or(MAX_TOKENS, |most| most.min(MAX_TOKENS))
}

fn count(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|count| u32::try_from(count).ok())
}

fn number(value: &Value, least: f64, most: f64) -> Option<f32> {
    let number = value.as_f64().filter(|number| (least..=most).contains(number))?;
    // A positive value must not become zero, which means something else, as of a caller's.
    let narrow = number as f32;
    Some(if narrow == 0.0 && number > 0.0 { f32::MIN_POSITIVE } else { narrow })
}

/// One string, or at most four.
fn stops(value: &Value) -> Option<Vec<String>> {
    let one = |value: &Value| value.as_str().filter(|text| (1..=256).contains(&text.len())).map(str::to_owned);
    match value {
        Value::Array(list) if list.len() <= 4 => list.iter().map(one).collect(),
        value => Some(vec![one(value)?]),
    }
}

/// What a guest reads; causes are for the log.
fn failure(reject: Reject) -> CapabilityError {
    let Reject { kind, fault, code, message, .. } = reject;
    match kind {
        // A model, a part of a message, a parameter.
        _ if code.is_some_and(|code| code.starts_with("unsupported_")) => CapabilityError::Unsupported(message),
        RejectKind::UpstreamTimeout => CapabilityError::Timeout(message),
        // A budget or a limit that callers have used up is no failure of the plugin's, which would be left out for others too.
        RejectKind::RateLimited if fault == Fault::Client => CapabilityError::Denied(message),
        RejectKind::Unavailable | RejectKind::RateLimited | RejectKind::BadUpstream | RejectKind::Internal => {
            CapabilityError::Unavailable(message)
        }
        _ => CapabilityError::Invalid(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidegate_types::Role;

    fn with(params: Value) -> Result<Chat, CapabilityError> {
        let Value::Object(params) = params else { panic!("{params}") };
        chat("m", vec![Message::text("m0", Role::User, "hi")], params)
    }

    /// Else a guard that asks its own gateway, as an upstream, would be asked without an end.
    #[test]
    fn a_question_has_come_through_as_many_gateways_as_the_request() {
        let (caller, request_id) = (Arc::new(tidegate_types::Caller::local()), tidegate_types::RequestId::new("r"));
        let ask = ModelAsk { model: "m".into(), caller, request_id, hops: 3, until: Instant::now() };
        assert_eq!(behalf(ask).unwrap().1.hops, 3);
    }

    #[test]
    fn a_plugin_without_a_bound_gets_no_longer_answer_than_the_model_gives() {
        assert_eq!(with(json!({})).unwrap().max_tokens, None);
        for (most, expected) in [(Some(512), 512), (Some(4096), 1024), (None, 1024)] {
            assert_eq!(unasked_tokens(&Quota { max_output_tokens: most, ..Quota::default() }), expected);
        }
    }

    #[test]
    fn whatever_a_model_cannot_do_is_unsupported() {
        for code in ["unsupported_model", "unsupported_content", "unsupported_parameter"] {
            let error = failure(Reject::invalid("messages[0]", "it reads text only").code(code));
            assert!(matches!(error, CapabilityError::Unsupported(_)), "{code}: {error:?}");
        }
        let error = failure(Reject::invalid("messages[0]", "it is empty").code("invalid_value"));
        assert!(matches!(error, CapabilityError::Invalid(_)), "{error:?}");
    }

    /// Its tenant's other callers may have some left.
    #[test]
    fn what_callers_have_used_up_is_denied_and_a_server_that_is_busy_is_not_there() {
        let limited = |fault| failure(Reject::new(RejectKind::RateLimited, fault, "so much a minute"));
        assert!(matches!(limited(Fault::Client), CapabilityError::Denied(_)));
        assert!(matches!(limited(Fault::Upstream), CapabilityError::Unavailable(_)));
    }

    #[test]
    fn parameters_are_openais_and_others_are_refused() {
        let chat = with(json!({"max_tokens": 5, "temperature": 0.5, "seed": 7, "stop": "."})).unwrap();
        assert_eq!((chat.max_tokens, chat.sampling.seed, chat.stop), (Some(5), Some(7), vec![".".to_owned()]));
        let chat = with(json!({"max_tokens": null, "stop": null, "seed": -1, "temperature": 1e-60})).unwrap();
        assert_eq!((chat.max_tokens, chat.stop, chat.sampling.seed), (None, Vec::new(), Some(u64::MAX)));
        assert!(chat.sampling.temperature.unwrap() > 0.0);
        for bad in [
            json!({"seed": u64::MAX}),
            json!({"max_tokens": 0}),
            json!({"max_tokens": "5"}),
            json!({"temperature": 3}),
            json!({"top_p": -1}),
            json!({"stop": ["a", "b", "c", "d", "e"]}),
            json!({"stop": ""}),
            json!({"tools": []}),
        ] {
            assert!(matches!(with(bad.clone()), Err(CapabilityError::Invalid(_))), "{bad}");
        }
    }
}
