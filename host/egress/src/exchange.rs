//! One response being read. For HTTP/1.1 the reader drives the connection itself: socket, parser and reader are
//! one poll, so an event costs no hop between tasks, and dropping the response closes the socket at once.

use crate::connector::Shared;
use crate::error::{EgressError, describe};
use crate::http2::Stream;
use crate::idle::IdleTimer;
use crate::pool::H1;
use bytes::Bytes;
use hyper::body::{Body as _, Frame, Incoming};
use hyper::{HeaderMap, StatusCode};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// How long a response's end may take after its last event before the connection is given up.
const SETTLE: Duration = Duration::from_secs(1);

/// An answer whose head has arrived.
pub struct Response {
    /// HTTP status.
    pub status: StatusCode,
    /// HTTP headers.
    pub headers: HeaderMap,
    body: Incoming,
    /// The connection to read from; none for HTTP/2, which is driven by a task of its own.
    connection: Option<H1>,
    /// Counts on its connection for as long as it is read; none for HTTP/1.1.
    _stream: Option<Stream>,
    shared: Arc<Shared>,
    idle: IdleTimer,
    received: u64,
    limit_bytes: u64,
    ended: bool,
}

impl Response {
    pub(crate) fn new(
        head: hyper::Response<Incoming>,
        (connection, stream): (Option<H1>, Option<Stream>),
        shared: Arc<Shared>,
    ) -> Self {
        let (head, body) = head.into_parts();
        let (idle, limit_bytes) = (IdleTimer::new(shared.idle_timeout), shared.max_response_bytes);
        Self {
            status: head.status,
            headers: head.headers,
            body,
            connection,
            _stream: stream,
            shared,
            idle,
            received: 0,
            limit_bytes,
            ended: false,
        }
    }

    /// Lets this body have so many bytes, where that is more than the connector allows.
    pub fn allow(&mut self, limit_bytes: u64) {
        self.limit_bytes = self.limit_bytes.max(limit_bytes);
    }

    /// Says that the answer has not begun with its head, which some servers send before they work: until
    /// [`Self::has_begun`] silence has the bound `limit`, as a head has.
    pub fn is_to_begin(&mut self, limit: Duration) {
        self.idle.set_limit(limit);
    }

    /// Says that the answer has begun.
    pub fn has_begun(&mut self) {
        self.idle.set_limit(self.shared.idle_timeout);
    }

    /// The next bytes of the body; `None` at its end, which is a clean one: a body that was cut is an error.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, EgressError>>> {
        loop {
            if self.ended {
                return Poll::Ready(None);
            }
            match self.poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.idle.touch();
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(self.counted(data)));
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    self.give_up();
                    return Poll::Ready(Some(Err(self.broken(&error))));
                }
                Poll::Ready(None) => {
                    self.ended = true;
                    if let Some(connection) = self.connection.take() {
                        self.shared.pool.put(connection);
                    }
                }
                Poll::Pending => return self.idle.poll_silent(cx).map(|()| Some(Err(self.silent()))),
            }
        }
    }

    /// As [`Self::poll_data`].
    pub async fn data(&mut self) -> Option<Result<Bytes, EgressError>> {
        poll_fn(|cx| self.poll_data(cx)).await
    }

    /// The whole body, of at most `limit_bytes`.
    pub async fn collect(&mut self, limit_bytes: u64) -> Result<Vec<u8>, EgressError> {
        let mut body = Vec::new();
        while let Some(data) = self.data().await {
            body.extend_from_slice(&data?);
            if body.len() as u64 > limit_bytes {
                return Err(self.too_large(limit_bytes));
            }
        }
        Ok(body)
    }

    /// Says that everything of interest was read. The end of the body may still be on its way; it is awaited
    /// for a moment, in the background, so that the connection can serve the next request.
    pub fn settle(mut self) {
        let mut noop = Context::from_waker(std::task::Waker::noop());
        if self.ended || matches!(self.poll_data(&mut noop), Poll::Ready(None | Some(Err(_)))) {
            return;
        }
        tokio::spawn(async move {
            let rest = async { while let Some(Ok(_)) = self.data().await {} };
            // Running out of time drops the response, which closes the connection.
            drop(tokio::time::timeout(SETTLE, rest).await);
        });
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let body = &mut self.body;
        match &mut self.connection {
            Some(connection) => connection.driving(cx, |cx| Pin::new(&mut *body).poll_frame(cx)),
            None => Pin::new(body).poll_frame(cx),
        }
    }

    fn counted(&mut self, data: Bytes) -> Result<Bytes, EgressError> {
        self.received += data.len() as u64;
        if self.received > self.limit_bytes {
            self.give_up();
            return Err(self.too_large(self.limit_bytes));
        }
        Ok(data)
    }

    /// Closes the connection; what was not read is lost.
    fn give_up(&mut self) {
        self.ended = true;
        self.connection = None;
    }

    fn silent(&mut self) -> EgressError {
        self.give_up();
        EgressError::IdleTimeout { origin: self.shared.origin.name.clone(), limit: self.idle.limit }
    }

    fn too_large(&self, limit_bytes: u64) -> EgressError {
        EgressError::TooLarge { origin: self.shared.origin.name.clone(), limit_bytes }
    }

    fn broken(&self, error: &hyper::Error) -> EgressError {
        EgressError::Broken { origin: self.shared.origin.name.clone(), why: describe(error) }
    }
}
