//! The world of a plugin under test: HTTP and models that answer from the fixtures, and nothing from outside. What a server
//! refuses before it asks anybody is refused here too, by the server's own checks.

use super::fixture::{HttpAnswer, ModelAnswer, ScriptedError};
use crate::outside::http::{check_secrets, failure, outlet};
use crate::outside::models::chat;
use serde_json::{Map, Value};
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tidegate_egress::Outlet;
use tidegate_sandbox::capability::{
    BoxFuture, CapabilityError, HttpClient, HttpOrigins, HttpRequest, HttpResponse, ModelAsk, ModelReply, ModelService,
};
use tidegate_sandbox::stage::HttpGrant;
use tidegate_types::{Message, Usage};

type Answer<T> = Result<T, CapabilityError>;

/// An answer, and how many requests it may still answer.
struct Scripted {
    answer: HttpAnswer,
    left: AtomicU32,
}

impl Scripted {
    fn fits(&self, request: &HttpRequest, body: &str) -> bool {
        let HttpAnswer { url, method, body_has, headers_have, .. } = &self.answer;
        let has = |name: &str, text: &str| {
            request.headers.iter().any(|(sent, value)| sent.eq_ignore_ascii_case(name) && value.contains(text))
        };
        *url == request.url
            && method.as_ref().is_none_or(|method| method.eq_ignore_ascii_case(&request.method))
            && body_has.as_ref().is_none_or(|text| body.contains(text))
            && headers_have.iter().all(|(name, text)| has(name, text))
    }

    /// Takes one of its times.
    fn takes(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.answer.times.is_none() || self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    fn answer(&self) -> Answer<HttpResponse> {
        let HttpAnswer { status, headers, body, error, .. } = &self.answer;
        if let Some(error) = error {
            return Err(scripted_error(*error));
        }
        let headers = headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
        Ok(HttpResponse { status: *status, headers, body: body.clone().into_bytes(), truncated: false })
    }
}

fn scripted_error(error: ScriptedError) -> CapabilityError {
    let error = match error {
        ScriptedError::Timeout => CapabilityError::Timeout,
        ScriptedError::Unavailable => CapabilityError::Unavailable,
        ScriptedError::Denied => CapabilityError::Denied,
        ScriptedError::Unsupported => CapabilityError::Unsupported,
        ScriptedError::InvalidInput => CapabilityError::Invalid,
    };
    error("as scripted".into())
}

/// Answers requests.
pub(super) struct ScriptedHttp(Arc<[Scripted]>);

impl ScriptedHttp {
    pub(super) fn new(answers: Vec<HttpAnswer>) -> Self {
        let scripted = |answer: HttpAnswer| Scripted { left: AtomicU32::new(answer.times.unwrap_or(0)), answer };
        Self(answers.into_iter().map(scripted).collect())
    }

    /// How many requests each may still answer.
    pub(super) fn left(&self) -> Vec<u32> {
        self.0.iter().map(|scripted| scripted.left.load(Ordering::Relaxed)).collect()
    }

    /// Lets each answer so many again.
    pub(super) fn rearm(&self, left: &[u32]) {
        self.0.iter().zip(left).for_each(|(scripted, left)| scripted.left.store(*left, Ordering::Relaxed));
    }
}

impl HttpClient for ScriptedHttp {
    fn open(&self, grant: &HttpGrant) -> Result<Arc<dyn HttpOrigins>, String> {
        Ok(Arc::new(Origins { outlet: outlet(grant, Vec::new())?, answers: self.0.clone() }))
    }
}

struct Origins {
    /// Sends nothing: it says what a server would send.
    outlet: Outlet,
    answers: Arc<[Scripted]>,
}

impl Origins {
    fn answer(&self, request: &HttpRequest) -> Answer<HttpResponse> {
        check_secrets(request)?;
        self.outlet.check(&request.method, &request.url, &request.headers).map_err(failure)?;
        let body = String::from_utf8_lossy(&request.body);
        let Some(scripted) = self.answers.iter().find(|scripted| scripted.fits(request, &body) && scripted.takes())
        else {
            let (method, url) = (&request.method, &request.url);
            return Err(CapabilityError::Unavailable(format!("no [[host.http]] answers {method} {url}")));
        };
        scripted.answer()
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
        let said = |answer: &ModelAnswer| match &answer.error {
            Some(error) => Some(Err(scripted_error(*error))),
            None => take(answer).map(Ok),
        };
        self.0.iter().filter(fits).find_map(said).unwrap_or_else(|| {
            // One whose entries answer no such question at all is a model of another kind.
            let answers = self.0.iter().any(|answer| answer.model == ask.model && said(answer).is_some());
            let error = if answers { CapabilityError::Unavailable } else { CapabilityError::Unsupported };
            Err(error(format!("no [[host.models]] with `{kind}` answers `{}`", ask.model)))
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
        params: Map<String, Value>,
    ) -> BoxFuture<'_, Answer<ModelReply>> {
        let text = chat(&ask.model, messages, params).and_then(|chat| {
            let question: String = chat.messages.iter().map(Message::joined_text).collect();
            self.answer(&ask, &question, "text", |answer| answer.text.clone())
        });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::workbench;
    use serde_json::json;
    use std::time::{Duration, Instant};
    use tidegate_types::{Caller, RequestId, Role};

    fn request(method: &str, url: &str, header: (&str, &str)) -> HttpRequest {
        HttpRequest {
            method: method.into(),
            url: url.into(),
            headers: vec![(header.0.into(), header.1.into())],
            only_to: None,
            body: Vec::new(),
            timeout: Duration::from_secs(1),
            response_bytes: 1024,
        }
    }

    fn sent(method: &str, url: &str, header: (&str, &str)) -> Answer<HttpResponse> {
        let answer = toml::from_str(&format!("url = \"{url}\"\nbody = \"hi\"")).unwrap();
        let grant = HttpGrant::new(["https://a.example".to_owned()]);
        let origins = ScriptedHttp::new(vec![answer]).open(&grant).unwrap();
        workbench::runtime().unwrap().block_on(origins.send(request(method, url, header)))
    }

    #[test]
    fn a_request_that_every_server_refuses_is_not_answered() {
        let header = ("x-kind", "a");
        assert_eq!(sent("GET", "https://a.example/x", header).unwrap().body, b"hi");
        let denied = sent("GET", "https://a.example.b.example/x", header);
        let words = "https://a.example.b.example is not a granted origin";
        assert_eq!(denied, Err(CapabilityError::Denied(words.into())));
        for (method, url, header) in [
            ("TRACE", "https://a.example/x", header),
            ("a b", "https://a.example/x", header),
            ("GET", "https://a.example/x#y", header),
            ("GET", "https://a.example/é", header),
            ("GET", "https://a.example/x", ("x kind", "a")),
            ("GET", "https://a.example/x", ("x-kind", "a\nb")),
        ] {
            let answer = sent(method, url, header);
            assert!(matches!(answer, Err(CapabilityError::Invalid(_))), "{method} {url} {header:?}: {answer:?}");
        }
    }

    #[test]
    fn an_address_that_every_server_denies_is_not_answered() {
        let url = "http://169.254.169.254/x";
        let answered = |networks: &[&str]| {
            let grant = HttpGrant::new(["http://169.254.169.254".to_owned()]);
            let grant = HttpGrant { networks: networks.iter().map(|network| (*network).to_owned()).collect(), ..grant };
            let answer = toml::from_str(&format!("url = \"{url}\"")).unwrap();
            let origins = ScriptedHttp::new(vec![answer]).open(&grant).unwrap();
            workbench::runtime().unwrap().block_on(origins.send(request("GET", url, ("x", "a"))))
        };
        let denied = answered(&[]).unwrap_err();
        assert!(matches!(denied, CapabilityError::DeniedUntold { .. }), "{denied}");
        assert_eq!(answered(&["169.254.169.254/32"]).unwrap().status, 200);
    }

    #[test]
    fn an_answer_that_is_used_up_answers_again_once_it_is_rearmed() {
        let answer = |text: &str| toml::from_str::<HttpAnswer>(text).unwrap();
        let url = "url = \"https://a.example/x\"";
        let http = ScriptedHttp::new(vec![answer(&format!("{url}\ntimes = 2\nstatus = 503")), answer(url)]);
        let origins = http.open(&HttpGrant::new(["https://a.example".to_owned()])).unwrap();
        let runtime = workbench::runtime().unwrap();
        let status =
            || runtime.block_on(origins.send(request("GET", "https://a.example/x", ("x", "a")))).unwrap().status;
        assert_eq!(status(), 503);
        let left = http.left();
        for _ in 0..3 {
            http.rearm(&left);
            assert_eq!([status(), status()], [503, 200]);
        }
    }

    #[test]
    fn a_grant_that_no_server_takes_is_refused() {
        let why = |origin: &str| ScriptedHttp::new(Vec::new()).open(&HttpGrant::new([origin.to_owned()])).err();
        assert_eq!(why("https://a.example"), None);
        assert!(why("https://a.example/path").is_some_and(|why| why.contains("without a path")));
    }

    /// The first word of an error: what it is.
    fn kind(error: CapabilityError) -> String {
        error.to_string().split(':').next().unwrap().to_owned()
    }

    #[test]
    fn a_model_of_another_kind_does_not_support_the_question() {
        let runtime = workbench::runtime().unwrap();
        let embeds = |answers: &[&str]| {
            let models = ScriptedModels::new(answers.iter().map(|answer| toml::from_str(answer).unwrap()).collect());
            let (caller, request_id) = (Caller::local().into(), RequestId::new("test"));
            let ask = ModelAsk { model: "m".into(), caller, request_id, hops: 0, until: Instant::now() };
            runtime.block_on(models.embed(ask, vec!["hi".into()])).map_err(kind)
        };
        let chats = "model = \"m\"\ntext = \"yes\"";
        assert_eq!(embeds(&[chats]), Err("unsupported".into()));
        let embeds_others = "model = \"m\"\nhas = \"bye\"\nvector = [1]";
        assert_eq!(embeds(&[chats, embeds_others]), Err("unavailable".into()));
        for error in ["timeout", "unavailable", "denied", "unsupported", "invalid"] {
            let script = if error == "invalid" { "invalid-input" } else { error };
            assert_eq!(embeds(&[&format!("model = \"m\"\nerror = \"{script}\"")]), Err(error.into()));
        }
    }

    #[test]
    fn a_question_that_every_server_refuses_is_not_answered() {
        let answer = toml::from_str("model = \"tiny\"\ntext = \"yes\"").unwrap();
        let models = ScriptedModels::new(vec![answer]);
        let asked = |messages: Vec<Message>, params: Value| {
            let (caller, request_id) = (Caller::local().into(), RequestId::new("test"));
            let ask = ModelAsk { model: "tiny".into(), caller, request_id, hops: 0, until: Instant::now() };
            let Value::Object(params) = params else { panic!("{params}") };
            workbench::runtime().unwrap().block_on(models.complete(ask, messages, params))
        };
        let question = || vec![Message::text("m0", Role::User, "hi")];
        assert_eq!(asked(question(), json!({"max_tokens": 5})).unwrap().text, "yes");
        for (messages, params) in
            [(question(), json!({"max_tokens": 0})), (question(), json!({"tools": []})), (Vec::new(), json!({}))]
        {
            assert!(matches!(asked(messages, params.clone()), Err(CapabilityError::Invalid(_))), "{params}");
        }
    }
}
