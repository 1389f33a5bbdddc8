//! Connections of one origin between requests: a bounded stack of idle HTTP/1.1 connections, newest first so
//! that a pool shrinks when traffic does, and as many shared HTTP/2 connections as their streams need. Each runtime has
//! its own, since the runtime that opened a connection hears from it: another one would be woken across threads for every
//! piece. It finds them without waiting for another. What was idle for too long is not taken: what stands between may have
//! forgotten it.

use crate::http2::{Http2, Stream};
use arc_swap::ArcSwap;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// A few: those of the runtimes that asked for connections.
    homes: ArcSwap<Vec<Home>>,
    begun: Instant,
    /// When all were pruned last, in milliseconds since `begun`.
    pruned_ms: AtomicU64,
}

/// Runtimes that rest do not close what they keep; so one of the others does, after each such time.
const PRUNE_EVERY: Duration = Duration::from_secs(1);

/// What is kept of one runtime.
#[derive(Clone, Default)]
struct Home {
    of: Option<tokio::runtime::Id>,
    kept: Arc<Mutex<Kept>>,
}

impl Home {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
        Self { max_idle, keep_idle, homes: ArcSwap::default(), begun: Instant::now(), pruned_ms: AtomicU64::new(0) }
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
        let now = Instant::now();
        self.prune(now);
        let home = self.here();
        let mut kept = home.lock();
        kept.prune(now, self.keep_idle);
        if let Some(shared) = kept.shared.iter().find(|shared| shared.has_room()) {
            return Some(Connection::H2(shared.clone(), shared.open()));
        }
        kept.idle.pop_back().map(|(connection, _)| Connection::H1(connection))
    }

    /// Shares a new HTTP/2 connection, unless others that were dialled meanwhile have room.
    pub(crate) fn share(&self, connection: &Http2) {
        let home = self.here();
        let mut kept = home.lock();
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
        let home = self.here();
        let mut kept = home.lock();
        if kept.idle.len() < self.max_idle {
            kept.idle.push_back((connection, Instant::now()));
        }
    }

    /// Closes what any runtime has kept for too long, some time after somebody did last.
    fn prune(&self, now: Instant) {
        let now_ms = now.duration_since(self.begun).as_millis() as u64;
        let last_ms = self.pruned_ms.load(Ordering::Relaxed);
        let is_soon = now_ms.saturating_sub(last_ms) < self.keep_idle.min(PRUNE_EVERY).as_millis() as u64;
        let claim = || self.pruned_ms.compare_exchange(last_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed);
        if is_soon || claim().is_err() {
            return;
        }
        self.homes.load().iter().for_each(|home| home.lock().prune(now, self.keep_idle));
    }

    /// What is kept of the runtime that this runs on.
    fn here(&self) -> Home {
        let of = tokio::runtime::Handle::try_current().ok().map(|runtime| runtime.id());
        let find = |homes: &[Home]| homes.iter().find(|home| home.of == of).cloned();
        if let Some(known) = find(&self.homes.load()) {
            return known;
        }
        let new = Home { of, ..Home::default() };
        // Another thread of the same runtime may be as far: the first counts.
        self.homes.rcu(|homes| match find(homes) {
            Some(_) => Arc::clone(homes),
            None => Arc::new(homes.iter().chain([&new]).cloned().collect()),
        });
        find(&self.homes.load()).unwrap_or(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};
    use tokio::runtime::{Builder, Runtime};

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    async fn connection() -> (H1, DuplexStream) {
        let (client, server) = duplex(1024);
        let client: Box<dyn Wire> = Box::new(client);
        let (sender, connection) = http1::handshake(TokioIo::new(client)).await.unwrap();
        (H1::new(sender, connection), server)
    }

    fn put(pool: &Pool, runtime: &Runtime) -> DuplexStream {
        runtime.block_on(async {
            let (connection, server) = connection().await;
            pool.put(connection);
            server
        })
    }

    #[test]
    fn a_runtime_takes_its_own_connections_only() {
        let pool = Pool::new(8, Duration::from_secs(60));
        let [one, other] = [runtime(), runtime()];
        let take = |runtime: &Runtime| runtime.block_on(async { pool.take().is_some() });
        let _servers = [put(&pool, &one), put(&pool, &one), put(&pool, &other)];
        assert_eq!([take(&other), take(&other), take(&one), take(&one), take(&one)], [true, false, true, true, false]);
        assert_eq!(pool.homes.load().len(), 2);
    }

    #[test]
    fn what_a_resting_runtime_keeps_is_closed_by_one_that_works() {
        let pool = Pool::new(8, Duration::from_millis(20));
        let [resting, working] = [runtime(), runtime()];
        let mut kept = put(&pool, &resting);
        std::thread::sleep(Duration::from_millis(40));
        // Also one that has only connections which are never put back, as those of HTTP/2.
        assert!(working.block_on(async { pool.take().is_none() }));
        let end = async { tokio::time::timeout(Duration::from_secs(20), kept.read(&mut [0; 8])).await };
        assert_eq!(working.block_on(end).unwrap().unwrap(), 0);
    }
}
