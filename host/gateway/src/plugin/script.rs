//! The world of a plugin under test: HTTP and models that answer from the fixtures, and nothing from outside.

use super::fixture::{HttpAnswer, ModelAnswer};
use serde_json::{Map, Value};
use std::future::ready;
use std::sync::Arc;
use tidegate_sandbox::capability::{
    BoxFuture, CapabilityError, HttpClient, HttpOrigins, HttpRequest, HttpResponse, ModelAsk, ModelReply, ModelService,
};
use tidegate_sandbox::stage::HttpGrant;
use tidegate_types::{Message, Usage};

type Answer<T> = Result<T, CapabilityError>;

/// Answers requests; checks the origin as the server would.
pub(super) struct ScriptedHttp(Arc<[HttpAnswer]>);

impl ScriptedHttp {
    pub(super) fn new(answers: Vec<HttpAnswer>) -> Self {
        Self(answers.into())
    }
}

impl HttpClient for ScriptedHttp {
    fn open(&self, grant: &HttpGrant) -> Result<Arc<dyn HttpOrigins>, String> {
        Ok(Arc::new(Origins { allowed: grant.origins.clone(), answers: self.0.clone() }))
    }
}

struct Origins {
    allowed: Vec<String>,
    answers: Arc<[HttpAnswer]>,
}

impl Origins {
    fn answer(&self, request: &HttpRequest) -> Answer<HttpResponse> {
        let within = |origin: &String| {
            let rest = request.url.strip_prefix(origin.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
        };
        if !self.allowed.iter().any(within) {
            return Err(CapabilityError::Denied(format!("{} is of no granted origin", request.url)));
        }
        let body = String::from_utf8_lossy(&request.body);
        let fits = |answer: &&HttpAnswer| {
            answer.url == request.url
                && answer.method.as_ref().is_none_or(|method| method.eq_ignore_ascii_case(&request.method))
                && answer.body_has.as_ref().is_none_or(|text| body.contains(text))
        };
        let Some(answer) = self.answers.iter().find(fits) else {
            let (method, url) = (&request.method, &request.url);
            return Err(CapabilityError::Unavailable(format!("no [[host.http]] answers {method} {url}")));
        };
        match answer.error.as_deref() {
            Some("timeout") => Err(CapabilityError::Timeout("as scripted".into())),
            Some(error) => Err(CapabilityError::Unavailable(error.into())),
            None => {
                let body = answer.body.clone().into_bytes();
                Ok(HttpResponse { status: answer.status, headers: Vec::new(), body, truncated: false })
            }
        }
    }
}

impl HttpOrigins for Origins {
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Answer<HttpResponse>> {
        Box::pin(ready(self.answer(&request)))
    }
}

/// Answers questions to models.
pub(super) struct ScriptedModels(Vec<ModelAnswer>);

impl ScriptedModels {
    pub(super) fn new(answers: Vec<ModelAnswer>) -> Self {
        Self(answers)
    }

    fn answer<T>(&self, ask: &ModelAsk, text: &str, kind: &str, take: impl Fn(&ModelAnswer) -> Option<T>) -> Answer<T> {
        let fits =
            |answer: &&ModelAnswer| answer.model == ask.model && answer.has.as_ref().is_none_or(|t| text.contains(t));
        let found = self.0.iter().filter(fits).find_map(take);
        found.ok_or_else(|| {
            CapabilityError::Unavailable(format!("no [[host.models]] with `{kind}` answers `{}`", ask.model))
        })
    }

    fn each<T>(
        &self,
        ask: &ModelAsk,
        texts: &[String],
        kind: &str,
        take: fn(&ModelAnswer) -> Option<T>,
    ) -> Answer<Vec<T>> {
        texts.iter().map(|text| self.answer(ask, text, kind, take)).collect()
    }
}

impl ModelService for ScriptedModels {
    fn check(&self, model: &str) -> Result<(), String> {
        match self.0.iter().any(|answer| answer.model == model) {
            true => Ok(()),
            false => Err(format!("no [[host.models]] has the model `{model}`")),
        }
    }

    fn embed(&self, ask: ModelAsk, texts: Vec<String>) -> BoxFuture<'_, Answer<Vec<Vec<f32>>>> {
        Box::pin(ready(self.each(&ask, &texts, "vector", |answer| answer.vector.clone())))
    }

    fn complete(
        &self,
        ask: ModelAsk,
        messages: Vec<Message>,
        _: Map<String, Value>,
    ) -> BoxFuture<'_, Answer<ModelReply>> {
        let question: String = messages.iter().map(Message::joined_text).collect();
        let text = self.answer(&ask, &question, "text", |answer| answer.text.clone());
        let reply = |text| ModelReply { text, finish_reason: "stop".into(), usage: Usage::default() };
        Box::pin(ready(text.map(reply)))
    }

    fn classify(&self, ask: ModelAsk, texts: Vec<String>) -> BoxFuture<'_, Answer<Vec<Vec<(String, f32)>>>> {
        Box::pin(ready(self.each(&ask, &texts, "labels", sorted_labels)))
    }
}

/// Highest score first.
fn sorted_labels(answer: &ModelAnswer) -> Option<Vec<(String, f32)>> {
    let mut labels: Vec<(String, f32)> = answer.labels.as_ref()?.iter().map(|(n, s)| (n.clone(), *s)).collect();
    labels.sort_by(|a, b| b.1.total_cmp(&a.1));
    Some(labels)
}
