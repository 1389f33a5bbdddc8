//! Asking an upstream: one request out, its head back, and a stream of events for the rest.

use crate::answer::Sending;
use crate::config::{UpstreamConfig, UpstreamError};
use crate::failure::{Failed, Failures, Trouble};
use crate::retry::Attempts;
use crate::stream::{Shape, UpstreamStream};
use crate::usage::Bounds;
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_egress::{Connector, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use tidegate_trace as trace;
use tidegate_types::{Chat, EmbedRequest, Form, Reject, RequestId};
use tidegate_wire::client::{
    AnswerReader, Failure, ListedModel, RequestOptions, WireError, embeddings, endpoint_path, labels, labels_body,
    listed_models, prompt_tokens, request_body, vectors_body,
};
use tokio::sync::Semaphore;
use tracing::{Instrument, Span};

/// Bytes of an error that are read, and how long that may take.
const MAX_FAILURE_BYTES: u64 = 64 << 10;
pub(crate) const FAILURE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_MODELS_BYTES: u64 = 4 << 20;
/// Of an answer about texts, for each: a vector of 4,096 numbers, should it come as decimals of as many digits as f64 have.
/// With 2,048 texts, which is all that a caller may send, that is 192 MiB.
const TEXT_BYTES: u64 = 96 << 10;
/// ... and together at least.
const TEXTS_BYTES: u64 = 1 << 20;
/// An answer about texts that takes a millisecond to read and more is read beside the connection's thread.
const LONG_BYTES: usize = 256 << 10;
/// As many of those are read at once.
static READINGS: Semaphore = Semaphore::const_new(8);

/// One model at one server. Clones share its connections.
#[derive(Clone)]
pub struct Upstream {
    connector: Connector,
    headers: HeaderMap,
    model: Arc<str>,
    options: RequestOptions,
    /// What it may take until something comes of a stream or of what is said of texts, and of an answer in one piece.
    start_timeout: Duration,
    whole_timeout: Duration,
    pub(crate) failures: Arc<Failures>,
}

impl Upstream {
    /// Checks the config; asks the server nothing yet.
    pub fn new(config: UpstreamConfig) -> Result<Self, UpstreamError> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        headers.insert("user-agent", HeaderValue::from_static(concat!("tidegate/", env!("CARGO_PKG_VERSION"))));
        if let Some(key) = &config.api_key {
            headers.insert("authorization", key.bearer()?);
        }
        Ok(Self {
            start_timeout: config.connector.first_byte_timeout,
            whole_timeout: config.whole_timeout,
            connector: Connector::new(config.connector)?,
            headers,
            model: config.model.into(),
            options: config.options,
            failures: Arc::new(Failures {
                upstream: config.name,
                api_key: config.api_key,
                reader: config.reader,
                words: true,
            }),
        })
    }

    /// The same, for a request of which nothing may be kept: what the server says of failures, which may repeat what it
    /// was asked, is for the caller and in no log.
    #[must_use]
    pub(crate) fn discreet(&self) -> Self {
        Self { failures: Arc::new(Failures { words: false, ..(*self.failures).clone() }), ..self.clone() }
    }

    /// Where it is, as `scheme://host:port`.
    pub fn origin(&self) -> &str {
        self.connector.origin()
    }

    /// Asks for an answer, once. Returns when the upstream has begun one, so that a refusal is an error here and not
    /// in the middle of a stream.
    ///
    /// `hops` counts the gateways that the request has come through; 0 sends no count.
    pub async fn generate(&self, chat: &Chat, request_id: &RequestId, hops: u8) -> Result<UpstreamStream, Reject> {
        Ok(*self.begin(chat, request_id, hops, &Attempts::default()).await?)
    }

    /// As [`Self::generate`], with what a failure says of the server; tells `attempts` what the server has of it. In a box from the
    /// start: it is handed on many times.
    pub(crate) async fn begin(
        &self,
        chat: &Chat,
        request_id: &RequestId,
        hops: u8,
        attempts: &Attempts,
    ) -> Result<Box<UpstreamStream>, Failed> {
        let body = request_body(chat, &self.model, self.options);
        let bounds = Bounds::new(chat, body.len());
        let mut request = self.request(Method::POST, endpoint_path(chat.form), body);
        name(&mut request, request_id, hops);
        let span = self.traced(&mut request);
        let limit = if chat.stream { self.start_timeout } else { self.whole_timeout };
        let noting = attempts.noting();
        let sent = self.send_telling(&request, limit, &noting).instrument(span.clone()).await;
        let mut response = sent.inspect_err(|_| trace::fail(&span, "upstream"))?;
        response.is_to_begin(limit);
        let shape = self.shape(&response).inspect_err(|_| trace::fail(&span, "upstream"))?;
        if let Shape::Events(_) = shape {
            // Nothing of a stream is kept but the event that is being read, which has a bound of its own.
            response.allow(u64::MAX);
        }
        let reader = AnswerReader::new(chat, new_call_id);
        Ok(Box::new(UpstreamStream::new(response, shape, reader, bounds, Arc::clone(&self.failures)).within(span)))
    }

    /// The request's own span, which the server is told of, so that its work is seen in the same trace.
    fn traced(&self, request: &mut Request) -> Span {
        let span = tracing::debug_span!(
            "upstream",
            otel.kind = "client",
            server.address = self.origin(),
            gen_ai.request.model = &*self.model
        );
        for (name, value) in trace::outgoing(&span) {
            if let Ok(value) = HeaderValue::from_str(&value) {
                request.headers.insert(HeaderName::from_static(name), value);
            }
        }
        span
    }

    /// The server's models; also a probe of whether it is there and takes our key.
    pub async fn models(&self) -> Result<Vec<ListedModel>, Reject> {
        let mut response = self.send(&self.request(Method::GET, "/models", Bytes::new())).await?;
        let body = response.collect(MAX_MODELS_BYTES).await.map_err(|error| self.failures.egress(&error))?;
        Ok(listed_models(&body).map_err(|error| self.failures.wire(error))?)
    }

    /// The vectors that a caller asks for, and how many tokens its texts had, where the server says so and that can be.
    pub(crate) async fn vectors(
        &self,
        asked: &EmbedRequest,
        sending: &Sending,
        attempts: &Attempts,
    ) -> Result<(Vec<Vec<f32>>, Option<u64>), Failed> {
        let body = vectors_body(&self.model, asked);
        let count = asked.inputs.len();
        self.ask_about("/embeddings", body, move |body| embeddings(body, count), most_bytes(asked), sending, attempts)
            .await
    }

    /// The labels of each text with their scores, highest first, and how many tokens the texts had, as above.
    pub(crate) async fn labels(
        &self,
        asked: &EmbedRequest,
        sending: &Sending,
        attempts: &Attempts,
    ) -> Result<(Vec<Vec<(String, f32)>>, Option<u64>), Failed> {
        let body = labels_body(&self.model, &asked.inputs);
        let count = asked.inputs.len();
        self.ask_about("/moderations", body, move |body| labels(body, count), most_bytes(asked), sending, attempts)
            .await
    }

    /// What the server says of texts, and how many tokens it says that they had.
    async fn ask_about<T: Send + 'static>(
        &self,
        path: &str,
        body: Vec<u8>,
        read: impl FnOnce(&[u8]) -> Result<T, WireError> + Send + 'static,
        most_bytes: u64,
        sending: &Sending,
        attempts: &Attempts,
    ) -> Result<(T, Option<u64>), Failed> {
        // Each token has a byte at least, and each text two quotes and a comma beside those that a model adds.
        let most_tokens = body.len() as u64;
        let mut request = self.request(Method::POST, path, Bytes::from(body));
        name(&mut request, &sending.request_id, sending.hops);
        let span = self.traced(&mut request);
        let noting = attempts.noting();
        let answering = async {
            let mut response = self.send_telling(&request, self.start_timeout, &noting).await?;
            response.allow(most_bytes);
            response.collect(most_bytes).await.map_err(|error| self.failures.egress(&error))
        };
        let body = answering.instrument(span.clone()).await.inspect_err(|_| trace::fail(&span, "upstream"))?;
        let is_long = body.len() > LONG_BYTES;
        let read = move || (read(&body), prompt_tokens(&body).filter(|tokens| *tokens <= most_tokens));
        let (said, tokens) = if is_long {
            // Its memory outlives a caller who leaves.
            let turn = READINGS.acquire().await;
            let reading = tokio::task::spawn_blocking(move || (read(), turn).0).await;
            reading.map_err(|error| self.failures.unexpected(format_args!("an answer that cannot be read: {error}")))?
        } else {
            read()
        };
        Ok((said.map_err(|error| self.failures.wire(error))?, tokens))
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Request {
        Request { method, path: path.to_owned(), headers: self.headers.clone(), body }
    }

    /// Sends, and reads the failure where the status says so.
    async fn send(&self, request: &Request) -> Result<Response, Failed> {
        self.send_telling(request, self.start_timeout, &|_| ()).await
    }

    /// The same; tells `sending` whether the server may have the request, and may do what it asks for.
    async fn send_telling(
        &self,
        request: &Request,
        limit: Duration,
        sending: &(dyn Fn(bool) + Sync),
    ) -> Result<Response, Failed> {
        let sent = self.connector.send_telling(request, limit, sending).await;
        let mut response = sent.map_err(|error| self.failures.egress(&error))?;
        if response.status == StatusCode::OK {
            return Ok(response);
        }
        // Those two may be of something in front of the server, which works on.
        sending(matches!(response.status, StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT));
        let body = tokio::time::timeout(FAILURE_TIMEOUT, response.collect(MAX_FAILURE_BYTES)).await;
        let failure = match body {
            Ok(Ok(body)) => Failure::parse(&body),
            // The status says enough.
            Ok(Err(_)) | Err(_) => Failure::default(),
        };
        let mut failed = self.failures.status(response.status, &response.headers, failure);
        let is_missing = matches!(response.status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED);
        if is_missing && request.path != endpoint_path(Form::Chat) {
            // Chats are what each server has; that it has nothing else does not make it a bad one.
            failed.trouble = Trouble::Refused;
        }
        Err(failed)
    }

    fn shape(&self, response: &Response) -> Result<Shape, Failed> {
        let kind = response.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
        match kind.split(';').next().unwrap_or_default().trim() {
            kind if kind.is_empty() || kind.eq_ignore_ascii_case("text/event-stream") => Ok(Shape::events()),
            kind if kind.eq_ignore_ascii_case("application/json") => Ok(Shape::Whole(Vec::new())),
            other => Err(self.failures.unexpected(format_args!("an answer of the type {other:?}"))),
        }
    }
}

/// Of an answer about texts.
fn most_bytes(asked: &EmbedRequest) -> u64 {
    TEXTS_BYTES.max(TEXT_BYTES * asked.inputs.len() as u64)
}

/// Says which request it is for, and how many gateways that has come through.
fn name(request: &mut Request, request_id: &RequestId, hops: u8) {
    if let Ok(id) = HeaderValue::from_str(request_id.as_str()) {
        request.headers.insert(HeaderName::from_static("x-request-id"), id);
    }
    if hops > 0 {
        request.headers.insert(HeaderName::from_static("x-tidegate-hops"), HeaderValue::from(u16::from(hops)));
    }
}

/// The id of a tool call whose server gives none: unique within the process and across restarts,
/// because a conversation may hold calls of many requests and upstreams.
fn new_call_id() -> String {
    static START: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let since_epoch = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    format!("call_{:x}{:x}", START.get_or_init(since_epoch), COUNT.fetch_add(1, Ordering::Relaxed))
}
