//! An HTTP/2 connection that requests share. Their streams are counted here: hyper takes any number of requests, and
//! those beyond the server's limit wait within it until their time is up.

use crate::pool::{Body, Wire};
use futures_util::task::AtomicWaker;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Streams of one connection, where the server allows as many: common servers allow 100 or 128.
const MAX_STREAMS: usize = 64;
/// One stream may hold this much unread text: enough for any burst of events.
const STREAM_WINDOW: u32 = 1 << 20;
/// All of them may: who reads slowly is in nobody's way.
const CONNECTION_WINDOW: u32 = MAX_STREAMS as u32 * STREAM_WINDOW;
/// A dead connection is noticed within the sum of the two, while streams are open.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// A connection. Clones are the same one; it closes when they and its streams are gone.
#[derive(Clone)]
pub(crate) struct Http2 {
    sender: http2::SendRequest<Body>,
    streams: Arc<Streams>,
}

/// A stream of a connection, which counts until this is dropped.
pub(crate) struct Stream(Arc<Streams>);

struct Streams {
    /// The server's limit, as far as it is known, within ours.
    limit: AtomicUsize,
    /// The server takes no new ones.
    retired: AtomicBool,
    /// Woken by what the server says: its settings, which come before all else, do not wake who drives the connection.
    heard: AtomicWaker,
    open: Mutex<Open>,
}

struct Open {
    num_streams: usize,
    /// When the last one ended.
    idle_since: Instant,
}

impl Http2 {
    /// Greets the server, and drives the connection in a task of its own; streams report its errors.
    pub(crate) async fn handshake(io: TokioIo<Box<dyn Wire>>) -> hyper::Result<Self> {
        let (sender, mut connection): (http2::SendRequest<Body>, _) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(io)
            .await?;
        let streams = Arc::new(Streams {
            limit: AtomicUsize::new(MAX_STREAMS),
            retired: AtomicBool::new(false),
            heard: AtomicWaker::new(),
            open: Mutex::new(Open { num_streams: 0, idle_since: Instant::now() }),
        });
        let of_task = Arc::clone(&streams);
        tokio::spawn(poll_fn(move |cx| {
            of_task.heard.register(cx.waker());
            let ended = Pin::new(&mut connection).poll(cx).map(drop);
            // The server says it behind the handshake, and may change it.
            let limit = connection.current_max_send_streams().clamp(1, MAX_STREAMS);
            of_task.limit.store(limit, Ordering::Relaxed);
            ended
        }));
        Ok(Self { sender, streams })
    }

    /// Whether another stream would be open at once, as far as is known.
    pub(crate) fn has_room(&self) -> bool {
        self.is_alive() && self.streams.open().num_streams < self.streams.limit.load(Ordering::Relaxed)
    }

    /// Counts another stream.
    pub(crate) fn open(&self) -> Stream {
        self.streams.open().num_streams += 1;
        Stream(Arc::clone(&self.streams))
    }

    /// Whether it is alive, and was without streams for `keep_idle` at most.
    pub(crate) fn is_fresh(&self, now: Instant, keep_idle: Duration) -> bool {
        let open = self.streams.open();
        self.is_alive() && (open.num_streams > 0 || now.duration_since(open.idle_since) <= keep_idle)
    }

    /// Opens no more streams: the server takes none.
    pub(crate) fn retire(&self) {
        self.streams.retired.store(true, Ordering::Relaxed);
    }

    pub(crate) async fn send(&mut self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        let answer = self.sender.send_request(request).await;
        self.streams.heard.wake();
        answer
    }

    fn is_alive(&self) -> bool {
        self.sender.is_ready() && !self.streams.retired.load(Ordering::Relaxed)
    }
}

impl Streams {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut open = self.0.open();
        open.num_streams -= 1;
        open.idle_since = Instant::now();
    }
}
