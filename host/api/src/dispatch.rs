//! Around every request: its id, its record, its route and its caller; and whatever fails becomes a response in
//! OpenAI's shape.

use crate::auth::Shown;
use crate::backend::Answers;
use crate::body::{Body, Response};
use crate::check;
use crate::credential;
use crate::error;
use crate::exchange::{Exchange, Inbound};
use crate::idempotency;
use crate::ids;
use crate::pages::Transport;
use crate::record::Record;
use crate::routes::{Door, Found, Route, find};
use crate::server::Api;
use crate::socket::Activity;
use hyper::body::{Body as _, Incoming};
use hyper::header::{ALLOW, CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use tidegate_identity::Certificate;
use tidegate_settled::Gate;
use tidegate_types::{Caller, Fault, Reject, RejectKind};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The service of one connection.
#[derive(Clone)]
pub(crate) struct Dispatch {
    pub(crate) api: Arc<Api>,
    pub(crate) activity: Arc<Activity>,
    /// Ends running answers. The connection's own, since each look takes its lock.
    pub(crate) cutting: CancellationToken,
    pub(crate) peer: SocketAddr,
    pub(crate) transport: Transport,
    /// What the client showed of itself by TLS.
    pub(crate) certificate: Option<Arc<Certificate>>,
    pub(crate) door: Door,
}

impl hyper::service::Service<Request<Incoming>> for Dispatch {
    type Response = Response;
    type Error = Infallible;
    /// Behind a gate: what wakes a connection is mostly the connection.
    type Future = Gate<Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let running = self.activity.request();
        self.activity.set_unread(!request.body().is_end_stream());
        let unique = ids::unique();
        let id = ids::request_id(request.headers().get(&REQUEST_ID).map(HeaderValue::as_bytes), &unique);
        let span = tracing::info_span!("request", %id);
        let headers = request.headers();
        let traced =
            span.in_scope(|| tidegate_trace::server(|name| headers.get(name).and_then(|value| value.to_str().ok())));
        let record = Record::new(id, request.method(), running, traced.clone());
        let dispatch = self.clone();
        let answer = async move { Ok(dispatch.respond(request, unique, record).await) };
        if traced.is_disabled() {
            return Gate::new(Box::pin(answer.instrument(span)));
        }
        Gate::new(Box::pin(answer.instrument(traced).instrument(span)))
    }
}

impl Dispatch {
    async fn respond(self, request: Request<Incoming>, unique: String, mut record: Record) -> Response {
        let id = record.request_id.clone();
        let (head, activity) = (request.method() == Method::HEAD, Arc::clone(&self.activity));
        let mut response = self.answer(request, unique, &mut record).await;
        if let Ok(id) = HeaderValue::from_str(id.as_str()) {
            response.headers_mut().insert(&REQUEST_ID, id);
        }
        if head {
            without_body(&mut response);
        }
        if activity.is_spent() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        record.status = Some(response.status());
        response.body_mut().keep(record);
        response
    }

    async fn answer(self, request: Request<Incoming>, unique: String, record: &mut Record) -> Response {
        if check::is_too_long(&request) {
            let mut response = reject(&check::too_long(), record);
            *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return response;
        }
        let (route, rest) = match find(self.door, request.method(), request.uri().path()) {
            Found::Route(route, rest) => (route, rest),
            Found::Methods(allowed) => return other_method(request.method(), &allowed, record),
            Found::Nothing => return reject(&no_such_path(), record),
        };
        record.route = route.path;
        let host = checked_head(route, &request);
        let (caller, answers) = match self.caller(route, request.headers(), host).await {
            Ok(found) => found,
            Err(error) => return reject(&error, record),
        };
        record.caller = Some(Arc::clone(&caller));
        let (api, cutting, peer, request_id) = (self.api, self.cutting, self.peer, record.request_id.clone());
        let once = idempotency::is_asked(request.method(), request.headers());
        let request = request.map(|body| Inbound::Arriving(body, self.activity));
        let (made, may_stream) = (None, Ok(()));
        let exchange =
            Exchange { api, request_id, unique, caller, answers, peer, rest, request, cutting, made, may_stream };
        // Boxed, so that requests without a key do not carry its size.
        let answer = if once { Box::pin(idempotency::once(route, exchange)) } else { (route.handler)(exchange) };
        match answer.await {
            Ok(response) => {
                if response.body().len().is_some() {
                    record.answered();
                }
                response
            }
            Err(error) => reject(&error, record),
        }
    }

    /// Before the body is read, so that nobody without a key makes the server hold anything; with what answers the caller then.
    /// `host` is what the head of the request was found to name.
    async fn caller(
        &self,
        route: &Route,
        headers: &HeaderMap,
        host: Result<String, Reject>,
    ) -> Result<(Arc<Caller>, Arc<dyn Answers>), Reject> {
        let host = host?;
        if route.access.is_open() {
            return Ok((Arc::new(Caller::nobody()), self.api.auth.answers()));
        }
        let shown = Shown {
            method: &route.method,
            headers,
            host: &host,
            peer: self.peer,
            transport: self.transport,
            certificate: self.certificate.as_deref(),
        };
        self.api.auth.caller(route, &shown).await
    }
}

/// The name that a request was sent to. Refuses a head that could be read in two ways, and a key in the URL.
fn checked_head(route: &Route, request: &Request<Incoming>) -> Result<String, Reject> {
    let host = check::head(request)?;
    if !route.access.is_open() {
        credential::none_in_url(request.uri().query())?;
    }
    Ok(host)
}

fn reject(reject: &Reject, record: &mut Record) -> Response {
    record.rejected(reject);
    error::response(reject)
}

fn no_such_path() -> Reject {
    let message = "there is no such path here; the API is under /v1, such as POST /v1/chat/completions";
    Reject::new(RejectKind::NotFound, Fault::Client, message)
}

/// `OPTIONS` asks for the methods; any other has missed them.
fn other_method(method: &Method, allowed: &str, record: &mut Record) -> Response {
    let mut response = if method == Method::OPTIONS {
        record.answered();
        let mut response = Response::new(Body::full(""));
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    } else {
        let message = format!("this path takes {allowed}");
        reject(&Reject::new(RejectKind::MethodNotAllowed, Fault::Client, message), record)
    };
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

/// `HEAD`: the headers of `GET`, its length included.
fn without_body(response: &mut Response) {
    if let Some(length) = response.body().len() {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response.body_mut().clear();
}
