//! The path of an outbound request: take a pooled connection or dial one, send, wait for the head, hand out the
//! response. A pooled connection that turns out dead before it answered is replaced, once.

use crate::address::AddressPolicy;
use crate::dial::{Dialer, Resolve};
use crate::error::{EgressError, describe};
use crate::exchange::Response;
use crate::origin::Origin;
use crate::pool::{Body, Connection, Pool};
use bytes::Bytes;
use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue};
use hyper::{Method, Uri, Version};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Where a connector goes, and its bounds.
#[derive(Clone)]
pub struct ConnectorConfig {
    /// `http://host:port/prefix` or `https://...`; requests append to the prefix.
    pub base_url: String,
    /// For name lookup, TCP and TLS together.
    pub connect_timeout: Duration,
    /// From the request to the head of the response.
    pub first_byte_timeout: Duration,
    /// Between two pieces of a response.
    pub idle_timeout: Duration,
    /// Bytes of a response's body.
    pub max_response_bytes: u64,
    /// Idle HTTP/1.1 connections that are kept for each runtime that opens some.
    pub max_idle: usize,
    /// How long they, and HTTP/2 connections without requests, are kept; below what common servers keep theirs.
    pub keep_idle: Duration,
    /// Certificates that are trusted besides the public ones.
    pub extra_roots: Vec<CertificateDer<'static>>,
    /// Speak HTTP/2 without asking; for cleartext servers that are known to.
    pub http2_prior_knowledge: bool,
    /// Which addresses may be connected to; `None` for any.
    pub addresses: Option<AddressPolicy>,
    /// Looks names up; the system's way where none is given.
    pub resolve: Option<Resolve>,
}

impl std::fmt::Debug for ConnectorConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectorConfig").field("base_url", &self.base_url).finish_non_exhaustive()
    }
}

impl ConnectorConfig {
    /// The defaults for `base_url`.
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            connect_timeout: Duration::from_secs(5),
            first_byte_timeout: Duration::from_secs(120),
            idle_timeout: Duration::from_secs(60),
            max_response_bytes: 64 << 20,
            max_idle: 64,
            keep_idle: Duration::from_secs(15),
            extra_roots: Vec::new(),
            http2_prior_knowledge: false,
            addresses: None,
            resolve: None,
        }
    }
}

/// A request to the connector's origin.
#[derive(Clone, Debug)]
pub struct Request {
    /// HTTP method.
    pub method: Method,
    /// Below the base URL's path; starts with a slash.
    pub path: String,
    /// `Host` and `Content-Length` are added.
    pub headers: HeaderMap,
    /// The body; empty for none.
    pub body: Bytes,
}

/// What all clones of a connector and their responses share.
pub(crate) struct Shared {
    pub(crate) origin: Origin,
    pub(crate) pool: Pool,
    pub(crate) max_response_bytes: u64,
    pub(crate) first_byte_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    dialer: Dialer,
}

/// Sends requests to one origin. Clones share the pool.
#[derive(Clone)]
pub struct Connector(Arc<Shared>);

impl Connector {
    /// Checks the URL and sets up TLS; opens no connection yet.
    pub fn new(config: ConnectorConfig) -> Result<Self, EgressError> {
        let origin = Origin::parse(&config.base_url)?;
        let dialer = Dialer::new(&origin, &config)?;
        Ok(Self(Arc::new(Shared {
            origin,
            pool: Pool::new(config.max_idle, config.keep_idle),
            max_response_bytes: config.max_response_bytes,
            dialer,
            first_byte_timeout: config.first_byte_timeout,
            idle_timeout: config.idle_timeout,
        })))
    }

    /// `scheme://host:port`, for logs.
    pub fn origin(&self) -> &str {
        &self.0.origin.name
    }

    /// Sends a request and waits for the head of the answer. Dropping the future closes the connection.
    pub async fn send(&self, request: &Request) -> Result<Response, EgressError> {
        self.send_telling(request, self.0.first_byte_timeout, &|_| ()).await
    }

    /// As [`Self::send`], with `limit` for the head; tells `sending` whether the server may have the request: each time that it goes to a connection,
    /// and where nothing was done with it there. Until the first time the server has seen nothing of it.
    pub async fn send_telling(
        &self,
        request: &Request,
        limit: Duration,
        sending: &(dyn Fn(bool) + Sync),
    ) -> Result<Response, EgressError> {
        match timeout(limit, self.send_unbounded(request, sending)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(EgressError::FirstByteTimeout { origin: self.0.origin.name.clone(), limit }),
        }
    }

    /// A reused connection may have been closed by the other side while it was idle, which shows only when it
    /// is used, and then soon. The request is then sent again on a fresh one, as RFC 9110 (9.2.2) allows where the
    /// failure is known to be of the connection. One that breaks later may have had the request, and begun an answer.
    /// A request that the server says it did not process is sent again, too.
    async fn send_unbounded(
        &self,
        request: &Request,
        sending: &(dyn Fn(bool) + Sync),
    ) -> Result<Response, EgressError> {
        let kept = self.0.pool.take();
        let was_kept = kept.is_some();
        let connection = match kept {
            Some(connection) => connection,
            None => self.dial().await?,
        };
        let begun = Instant::now();
        sending(true);
        match self.exchange(connection, request).await? {
            Ok(response) => return Ok(response),
            Err(error) if is_unprocessed(&error) => {}
            Err(error) if was_kept && was_stale(&error) && begun.elapsed() < STALE => {}
            Err(error) => return Err(self.broken(&error)),
        }
        sending(false);
        let connection = self.dial().await?;
        sending(true);
        let answered = self.exchange(connection, request).await?;
        answered.inspect_err(|error| sending(!is_unprocessed(error))).map_err(|error| self.broken(&error))
    }

    async fn dial(&self) -> Result<Connection, EgressError> {
        let connection = self.0.dialer.dial(&self.0.origin).await?;
        if let Connection::H2(shared, _) = &connection {
            self.0.pool.share(shared);
        }
        Ok(connection)
    }

    async fn exchange(
        &self,
        connection: Connection,
        request: &Request,
    ) -> Result<hyper::Result<Response>, EgressError> {
        let (head, held) = match connection {
            Connection::H1(mut connection) => {
                (connection.send(self.message(request, Version::HTTP_11)?).await, (Some(connection), None))
            }
            Connection::H2(mut shared, stream) => {
                let head = shared.send(self.message(request, Version::HTTP_2)?).await;
                if head.as_ref().is_err_and(is_unprocessed) {
                    shared.retire();
                }
                (head, (None, Some(stream)))
            }
        };
        Ok(head.map(|head| Response::new(head, held, Arc::clone(&self.0))))
    }

    fn message(&self, request: &Request, version: Version) -> Result<hyper::Request<Body>, EgressError> {
        let origin = &self.0.origin;
        let path = || origin.path(&request.path);
        let uri = if version == Version::HTTP_2 { [&origin.name, path().as_str()].concat() } else { path() };
        let mut message = hyper::Request::new(Body::new(request.body.clone()));
        *message.method_mut() = request.method.clone();
        *message.uri_mut() =
            Uri::try_from(uri).map_err(|_| EgressError::BadUrl { url: path(), why: "its path is no path" })?;
        *message.headers_mut() = request.headers.clone();
        if version != Version::HTTP_2 {
            message.headers_mut().insert(HOST, origin.authority.clone());
            if request.body.is_empty() && [Method::POST, Method::PUT].contains(&request.method) {
                // hyper leaves it out with an empty body, and servers answer 411.
                message.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
            }
        }
        Ok(message)
    }

    fn broken(&self, error: &hyper::Error) -> EgressError {
        EgressError::Broken { origin: self.0.origin.name.clone(), why: describe(error) }
    }
}

/// Until when a connection that breaks is taken for one that was closed before it was used.
const STALE: Duration = Duration::from_secs(1);

/// Whether the connection may have been gone before it was used.
fn was_stale(error: &hyper::Error) -> bool {
    let io = std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>());
    error.is_canceled() || error.is_closed() || error.is_incomplete_message() || io
}

/// Whether the server says that it has not processed the request (RFC 9113, 8.7). Streams that it was still to answer
/// when it said `GOAWAY` fail otherwise, if at all.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let http2 = std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    let says_so = |error: &h2::Error| error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM);
    http2.is_some_and(|error| error.is_remote() && says_so(error))
}
