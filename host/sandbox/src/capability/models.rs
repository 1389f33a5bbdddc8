//! `models`: questions to models by alias. This file bounds what a guest may ask and turns an alias into the
//! operator's model; the supplier asks it, as the tenant's work.

use super::{BoxFuture, CapabilityError};
use crate::bindings::tidegate::plugin::accounting;
use crate::bindings::tidegate::plugin::models as wit;
use crate::bindings::tidegate::plugin::types as wit_types;
use crate::convert;
use crate::json::Values;
use crate::media;
use crate::state::HostState;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Instant;
use tidegate_types::{Caller, Message, RequestId, Usage};

const MAX_TEXTS: usize = 256;
const MAX_TEXT_BYTES: usize = 1 << 20;

/// On whose behalf a model is asked, and until when.
#[derive(Clone, Debug)]
pub struct ModelAsk {
    /// The model's name in the config.
    pub model: String,
    /// The caller whose request the plugin works on.
    pub caller: Arc<Caller>,
    /// That request.
    pub request_id: RequestId,
    /// Gateways that it has come through.
    pub hops: u8,
    /// When nobody waits any more.
    pub until: Instant,
}

/// The labels of one text with scores from 0 to 1, highest first.
pub type Labels = Vec<(String, f32)>;

/// A completion.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelReply {
    /// What the model said.
    pub text: String,
    /// Why it ended.
    pub finish_reason: String,
    /// What it cost.
    pub usage: Usage,
}

/// Answers for the models that plugins may ask. Dropping a future stops its work.
pub trait ModelService: Send + Sync {
    /// Whether there is a model of that name; an error is for the operator. Called at load.
    fn check(&self, model: &str) -> Result<(), String>;

    /// One vector for each text.
    fn embed(&self, ask: ModelAsk, texts: Vec<String>) -> BoxFuture<'_, Result<Vec<Vec<f32>>, CapabilityError>>;

    /// One answer; `params` has been checked to be an object.
    fn complete(
        &self,
        ask: ModelAsk,
        messages: Vec<Message>,
        params: Map<String, Value>,
    ) -> BoxFuture<'_, Result<ModelReply, CapabilityError>>;

    /// The labels of each text with scores from 0 to 1, highest first.
    fn classify(&self, ask: ModelAsk, texts: Vec<String>) -> BoxFuture<'_, Result<Vec<Labels>, CapabilityError>>;
}

/// For hosts whose models plugins cannot ask: every grant is refused at load.
pub struct NoModels;

fn none<T: Send + 'static>() -> BoxFuture<'static, Result<T, CapabilityError>> {
    Box::pin(std::future::ready(Err(CapabilityError::Unsupported("this host has no models for plugins".into()))))
}

impl ModelService for NoModels {
    fn check(&self, _: &str) -> Result<(), String> {
        Err("this host has no models for plugins".into())
    }
    fn embed(&self, _: ModelAsk, _: Vec<String>) -> BoxFuture<'_, Result<Vec<Vec<f32>>, CapabilityError>> {
        none()
    }
    fn complete(
        &self,
        _: ModelAsk,
        _: Vec<Message>,
        _: Map<String, Value>,
    ) -> BoxFuture<'_, Result<ModelReply, CapabilityError>> {
        none()
    }
    fn classify(&self, _: ModelAsk, _: Vec<String>) -> BoxFuture<'_, Result<Vec<Labels>, CapabilityError>> {
        none()
    }
}

impl wit::Host for HostState {
    async fn embed(
        &mut self,
        alias: String,
        texts: Vec<String>,
    ) -> wasmtime::Result<Result<Vec<Vec<f32>>, wit::Error>> {
        let answer = async {
            let (ask, texts) = (self.ask("models.embed", &alias)?, bounded(texts)?);
            self.meter.waiting(self.blueprint.models.embed(ask, texts)).await
        };
        Ok(answer.await.map_err(Into::into))
    }

    async fn complete(
        &mut self,
        alias: String,
        messages: Vec<wit::Message>,
        params: String,
    ) -> wasmtime::Result<Result<wit::Reply, wit::Error>> {
        let answer = async {
            let ask = self.ask("models.complete", &alias)?;
            let (may_name, mut values) = (self.blueprint.grants.content, Values::of_result());
            let of_plugin = |message| of_plugin(message, may_name, &mut values);
            let messages = messages.into_iter().map(of_plugin).collect::<Result<Vec<_>, _>>();
            let messages = messages.map_err(CapabilityError::Invalid)?;
            let params = object(&params, &mut values)?;
            self.meter.waiting(self.blueprint.models.complete(ask, messages, params)).await
        };
        Ok(answer.await.map(reply).map_err(Into::into))
    }

    async fn classify(
        &mut self,
        alias: String,
        texts: Vec<String>,
    ) -> wasmtime::Result<Result<Vec<Vec<wit::Label>>, wit::Error>> {
        let answer = async {
            let (ask, texts) = (self.ask("models.classify", &alias)?, bounded(texts)?);
            self.meter.waiting(self.blueprint.models.classify(ask, texts)).await
        };
        let labels =
            |of_text: Labels| of_text.into_iter().map(|(name, score)| wit::Label { name, score }).collect::<Vec<_>>();
        Ok(answer.await.map(|texts| texts.into_iter().map(labels).collect()).map_err(Into::into))
    }
}

impl HostState {
    fn ask(&mut self, function: &'static str, alias: &str) -> Result<ModelAsk, CapabilityError> {
        self.allow("models", function)?;
        let grant = self.blueprint.grants.models.get(alias).ok_or_else(|| {
            CapabilityError::Denied(format!("the model alias `{}` is not granted here", alias.escape_debug()))
        })?;
        // Without a request (in `configure`) nobody's budget could be charged.
        let (Some(caller), Some(request_id)) = (self.caller.clone(), self.request.clone()) else {
            return Err(CapabilityError::Denied("models answer within a stage's call only".into()));
        };
        Ok(ModelAsk { model: grant.model.clone(), caller, request_id, hops: self.hops, until: self.until })
    }
}

/// `may_name` says that parts may name addresses, which the model's server would fetch: what the plugin sees may leave then.
fn of_plugin(message: wit_types::MessageResult, may_name: bool, values: &mut Values) -> Result<Message, String> {
    let message = convert::message(message, values)?;
    if !may_name {
        media::check(&message, |_, _| false).map_err(|why| format!("{why}; or be granted `content`"))?;
    }
    Ok(message)
}

fn bounded(texts: Vec<String>) -> Result<Vec<String>, CapabilityError> {
    let bytes: usize = texts.iter().map(String::len).sum();
    if texts.len() > MAX_TEXTS || bytes > MAX_TEXT_BYTES {
        let message = format!("{} texts of {bytes} bytes; at most {MAX_TEXTS} of {MAX_TEXT_BYTES}", texts.len());
        return Err(CapabilityError::Invalid(message));
    }
    Ok(texts)
}

fn object(json: &str, values: &mut Values) -> Result<Map<String, Value>, CapabilityError> {
    if json.trim().is_empty() {
        return Ok(Map::new());
    }
    values.take(json, "`params`").map_err(CapabilityError::Invalid)?;
    match serde_json::from_str(json) {
        Ok(Value::Object(params)) => Ok(params),
        _ => Err(CapabilityError::Invalid("`params` is not a JSON object".into())),
    }
}

fn reply(reply: ModelReply) -> wit::Reply {
    let ModelReply { text, finish_reason, usage } = reply;
    let usage = accounting::UsageResult {
        input: usage.input_tokens,
        input_cached: usage.cached_tokens,
        output: usage.output_tokens,
        attrs: Vec::new(),
    };
    let parts = vec![wit_types::PartResult::Text(text)];
    let role = wit_types::RoleResult::Assistant;
    let message = wit_types::MessageResult { id: "reply".into(), role, name: None, parts, attrs: Vec::new() };
    wit::Reply { message, finish_reason, usage }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blueprint::Blueprint;
    use crate::capability::Namespace;
    use crate::plugin::tests::{load, parts};
    use crate::sandbox::Snapshot;
    use crate::stage::{Grants, ModelGrant};
    use crate::state::Phase;
    use tidegate_types::TenantId;

    #[test]
    fn so_many_texts_of_so_many_bytes_are_asked_about_at_once_at_most() {
        let asked = |texts: usize, bytes: usize| bounded(vec!["a".repeat(bytes); texts]).map(|texts| texts.len());
        assert_eq!(asked(256, MAX_TEXT_BYTES / 256), Ok(MAX_TEXTS));
        for (texts, bytes, refused) in
            [(257, 0, "257 texts of 0 bytes"), (1, (1 << 20) + 1, "1 texts of 1048577 bytes")]
        {
            let why = format!("{refused}; at most 256 of 1048576");
            assert_eq!(asked(texts, bytes), Err(CapabilityError::Invalid(why)));
        }
    }

    /// A message with an image that is there.
    fn image(url: &str) -> wit_types::MessageResult {
        let body = serde_json::json!({"type": "image_url", "image_url": {"url": url}}).to_string();
        let parts = vec![wit_types::PartResult::Opaque(wit_types::OpaquePartResult { kind: "image_url".into(), body })];
        let role = wit_types::RoleResult::User;
        wit_types::MessageResult { id: "m0".into(), role, name: None, parts, attrs: Vec::new() }
    }

    /// What a plugin sees could leave by the address, with whoever fetches what is there.
    #[tokio::test]
    async fn a_model_is_told_an_address_where_what_the_plugin_sees_may_leave_and_not_by_its_grant_alone() {
        const FAR: &str = "https://a.example/?q=secret";
        let plugin = load(1, Snapshot::Never).unwrap();
        let (_, blueprint) = parts(&plugin);
        for (content, url, is_asked) in
            [(false, FAR, false), (true, FAR, true), (false, "data:image/png;base64,AA", true)]
        {
            let models = [("small".to_owned(), ModelGrant { model: "tiny".into() })].into();
            let grants = Grants { content, models, ..Grants::default() };
            let blueprint = Arc::new(Blueprint { grants, ..Blueprint::clone(blueprint) });
            let namespace = Namespace::of_tenant("p", TenantId::new("a"));
            let mut state = HostState::new(blueprint, namespace, Phase::Serve);
            (state.caller, state.request) = (Some(Arc::new(Caller::local())), Some(RequestId::new("r")));
            let answer = wit::Host::complete(&mut state, "small".into(), vec![image(url)], String::new()).await;
            match answer.unwrap() {
                // What the model's place says, which this host leaves empty.
                Err(wit::Error::Unsupported(_)) => assert!(is_asked, "{url}"),
                Err(wit::Error::InvalidInput(why)) => {
                    assert!(!is_asked && why.contains("or be granted `content`"), "{url}: {why}");
                }
                other => panic!("{url}: {other:?}"),
            }
        }
    }
}
