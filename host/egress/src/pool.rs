//! Connections of one origin between requests: a bounded stack of idle HTTP/1.1 connections, newest first so
//! that a pool shrinks when traffic does, and as many shared HTTP/2 connections as their streams need. Each runtime has
//! its own, since the runtime that opened a connection hears from it: another one would be woken across threads for every
//! piece. What was idle for too long is not taken: what stands between may have forgotten it.

use crate::http2::{Http2, Stream};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tidegate_settled::Turns;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

/// A byte stream: TCP, or TLS over it.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

pub(crate) type Body = Full<Bytes>;
type H1Driver = http1::Connection<TokioIo<Box<dyn Wire>>, Body>;

/// A connection that can take a request.
pub(crate) enum Connection {
    H1(H1),
    /// A shared one, and the request's place on it.
    H2(Http2, Stream),
}

/// An HTTP/1.1 connection together with what drives it. Nobody else polls it: whoever reads the response does.
pub(crate) struct H1 {
    sender: http1::SendRequest<Body>,
    driver: Driver,
    turns: Turns,
}

/// What moves the bytes of a connection.
struct Driver {
    connection: Pin<Box<H1Driver>>,
    ended: bool,
}

impl Driver {
    fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.ended {
            self.ended = self.connection.as_mut().poll(cx).is_ready();
        }
    }

    /// Asks `poll`, which waits for what this connection brings, and drives it where that has nothing yet. Both wake each
    /// other at every piece; the task hears only of the socket.
    fn driving<T>(
        &mut self,
        turns: &Turns,
        cx: &mut Context<'_>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        turns.poll(cx, |cx| {
            if let Poll::Ready(ready) = poll(cx) {
                return Poll::Ready(ready);
            }
            self.drive(cx);
            poll(cx)
        })
    }
}

impl H1 {
    pub(crate) fn new(sender: http1::SendRequest<Body>, connection: H1Driver) -> Self {
        let driver = Driver { connection: Box::pin(connection), ended: false };
        Self { sender, driver, turns: Turns::default() }
    }

    /// Asks `poll`, which waits for what this connection brings, and drives it meanwhile.
    pub(crate) fn driving<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.driver.driving(&self.turns, cx, poll)
    }

    pub(crate) async fn send(&mut self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        let Self { sender, driver, turns } = self;
        let mut answer = pin!(sender.send_request(request));
        poll_fn(|cx| driver.driving(turns, cx, |cx| answer.as_mut().poll(cx))).await
    }

    /// Whether it can take the next request, as far as is known without looking at the socket.
    fn is_ready(&self) -> bool {
        !self.driver.ended && self.sender.is_ready()
    }

    /// Looks at the socket, where the other side may have closed or said something unasked.
    fn look(&mut self) {
        self.driver.drive(&mut Context::from_waker(std::task::Waker::noop()));
    }
}

/// The idle connections.
pub(crate) struct Pool {
    max_idle: usize,
    keep_idle: Duration,
    kept: Mutex<Vec<(Home, Kept)>>,
}

/// The runtime that connections are of.
type Home = Option<tokio::runtime::Id>;

#[derive(Default)]
struct Kept {
    /// With the time since when, oldest first.
    idle: VecDeque<(H1, Instant)>,
    shared: Vec<Http2>,
}

impl Kept {
    /// Closes what is dead or was idle for longer than `keep_idle`.
    fn prune(&mut self, now: Instant, keep_idle: Duration) {
        while self.idle.front().is_some_and(|(_, since)| now.duration_since(*since) > keep_idle) {
            self.idle.pop_front();
        }
        self.shared.retain(|shared| shared.is_fresh(now, keep_idle));
    }
}

impl Pool {
    pub(crate) fn new(max_idle: usize, keep_idle: Duration) -> Self {
        Self { max_idle, keep_idle, kept: Mutex::default() }
    }

    /// A connection that was used before and still looks alive.
    pub(crate) fn take(&self) -> Option<Connection> {
        loop {
            match self.newest()? {
                // Without the lock: this is a call of the kernel.
                Connection::H1(mut connection) => {
                    connection.look();
                    if connection.is_ready() {
                        return Some(Connection::H1(connection));
                    }
                }
                shared @ Connection::H2(..) => return Some(shared),
            }
        }
    }

    fn newest(&self) -> Option<Connection> {
        let mut homes = self.lock();
        let kept = here(&mut homes);
        kept.prune(Instant::now(), self.keep_idle);
        if let Some(shared) = kept.shared.iter().find(|shared| shared.has_room()) {
            return Some(Connection::H2(shared.clone(), shared.open()));
        }
        kept.idle.pop_back().map(|(connection, _)| Connection::H1(connection))
    }

    /// Shares a new HTTP/2 connection, unless others that were dialled meanwhile have room.
    pub(crate) fn share(&self, connection: &Http2) {
        let mut homes = self.lock();
        let kept = here(&mut homes);
        kept.prune(Instant::now(), self.keep_idle);
        if !kept.shared.iter().any(Http2::has_room) {
            kept.shared.push(connection.clone());
        }
    }

    /// Keeps a connection whose response was read to its end; closes it when it cannot take another request or
    /// enough are kept.
    pub(crate) fn put(&self, mut connection: H1) {
        if !connection.is_ready() {
            // The end of the response was read, and it takes one more turn to notice that all is done.
            connection.look();
        }
        if !connection.is_ready() {
            return;
        }
        let mut homes = self.lock();
        let now = Instant::now();
        for (_, kept) in homes.iter_mut() {
            kept.prune(now, self.keep_idle);
        }
        let kept = here(&mut homes);
        if kept.idle.len() < self.max_idle {
            kept.idle.push_back((connection, now));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Home, Kept)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is kept of the runtime that this runs on.
fn here(homes: &mut Vec<(Home, Kept)>) -> &mut Kept {
    let home = tokio::runtime::Handle::try_current().ok().map(|runtime| runtime.id());
    let at = homes.iter().position(|(known, _)| *known == home).unwrap_or_else(|| {
        homes.push((home, Kept::default()));
        homes.len() - 1
    });
    &mut homes[at].1
}
