//! A TCP stream that bounds every wait of the peer's making: the first request, the rest of a request's
//! headers, an idle connection, and bytes that it does not take.
//!
//! The bounds live below HTTP and TLS, so that nothing above can forget one. Timers are armed only while the
//! connection waits, and they are not reset by each event: they run out and then look what happened meanwhile.

use crate::limits::Limits;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::coop;
use tokio::time::{Instant, Sleep, sleep_until};

/// What HTTP tells the socket about its requests.
#[derive(Default)]
pub(crate) struct Activity {
    /// Requests whose answer is not complete.
    running: AtomicUsize,
    /// Requests so far.
    begun: AtomicU64,
    /// HTTP/2: bytes outside of requests are common, and liveness is checked by pings.
    multiplexed: AtomicBool,
    /// HTTP/1: whether the last request has a body that was not read to its end.
    unread: AtomicBool,
}

impl Activity {
    /// Counts a request until the guard is dropped.
    pub(crate) fn request(self: &Arc<Self>) -> Running {
        self.running.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        Running(Arc::clone(self))
    }

    /// How many requests there have been.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether HTTP has taken the whole answer of every request.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn set_multiplexed(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    /// Notes whether a body comes behind the head of a request, or comes no more.
    pub(crate) fn set_unread(&self, unread: bool) {
        self.unread.store(unread, Ordering::Relaxed);
    }

    /// Whether what comes next may still belong to a request that was answered. Where it came behind the answer it would be
    /// taken for the head of the next request, which never ends. Of HTTP/2 never: each of its frames says whose it is.
    pub(crate) fn is_spent(&self) -> bool {
        self.unread.load(Ordering::Relaxed) && !self.multiplexed.load(Ordering::Relaxed)
    }
}

/// A request that is being answered.
pub(crate) struct Running(Arc<Activity>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The stream of one connection.
pub(crate) struct Socket {
    tcp: TcpStream,
    activity: Arc<Activity>,
    header_timeout: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
    /// When the head that is being received began, and how many requests had begun by then.
    head_since: Option<(Instant, u64)>,
    /// Since when nothing happens, and how many requests had begun by then.
    idle_since: Option<(Instant, u64)>,
    read_timer: Timer,
    /// It was last armed while requests were running, for no later than they need.
    looks_again: bool,
    stalled_since: Option<Instant>,
    write_timer: Timer,
    lingering: Option<Instant>,
}

/// A response to a request that was not read to its end would be lost with a hard close: the other side may not
/// have read it yet. So what it still sends is thrown away for this long.
const LINGER: Duration = Duration::from_secs(2);

impl Socket {
    /// The first head has its time from `since`.
    pub(crate) fn new(tcp: TcpStream, activity: Arc<Activity>, limits: &Limits, since: Instant) -> io::Result<Self> {
        // An event is one small write; waiting to merge it with the next costs 40 ms.
        tcp.set_nodelay(true)?;
        Ok(Self {
            tcp,
            activity,
            header_timeout: limits.header_timeout,
            idle_timeout: limits.idle_timeout,
            write_timeout: limits.write_timeout,
            head_since: Some((since, 0)),
            idle_since: None,
            read_timer: Timer::default(),
            looks_again: false,
            stalled_since: None,
            write_timer: Timer::default(),
            lingering: None,
        })
    }

    fn note_read(&mut self) {
        if self.activity.multiplexed.load(Ordering::Relaxed) {
            return;
        }
        self.idle_since = None;
        let begun = self.activity.begun.load(Ordering::Relaxed);
        if self.head_since.is_none_or(|(_, then)| then != begun) {
            self.head_since = Some((Instant::now(), begun));
        }
    }

    /// Nothing to read: is the peer owed more patience? An idle connection ends like one that the peer closed.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.activity.is_idle() {
            self.head_since = None;
            self.idle_since = None;
            // Nobody tells the socket when the answer is complete, and hyper does not ask for bytes again while
            // a read is pending. So it looks by itself, at the latest after this time.
            if !self.looks_again || !self.read_timer.will_wake(cx) {
                self.looks_again = self.read_timer.poll(cx, Instant::now() + self.header_timeout).is_pending();
            }
            return Poll::Pending;
        }
        self.looks_again = false;
        let begun = self.activity.begun.load(Ordering::Relaxed);
        // A head that began before the last request did was that request's, and has been answered.
        self.head_since = self.head_since.filter(|(_, then)| *then == begun);
        if let Some((since, _)) = self.head_since {
            ready!(self.read_timer.poll(cx, since + self.header_timeout));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.idle_since = self.idle_since.filter(|(_, then)| *then == begun);
        let (since, _) = *self.idle_since.get_or_insert_with(|| (Instant::now(), begun));
        self.read_timer.poll(cx, since + self.idle_timeout).map(Ok)
    }

    /// Follows the outcome of a write: progress ends a stall, a stall may end the connection.
    fn watch<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled_since = None;
            return outcome;
        }
        let due = *self.stalled_since.get_or_insert_with(Instant::now) + self.write_timeout;
        ready!(self.write_timer.poll(cx, due));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_linger(&mut self, cx: &mut Context<'_>, since: Instant) -> Poll<()> {
        let mut sink = [0; 8192];
        loop {
            if self.read_timer.poll(cx, since + LINGER).is_ready() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut sink);
            match ready!(Pin::new(&mut self.tcp).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(()),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut this.tcp).poll_read(cx, buffer) {
            Poll::Ready(Ok(())) => {
                if buffer.filled().len() > before {
                    this.note_read();
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => this.poll_patience(cx),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.tcp).poll_write(cx, bytes);
        this.watch(cx, outcome)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.tcp).poll_write_vectored(cx, slices);
        this.watch(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let since = match this.lingering {
            Some(since) => since,
            None => {
                ready!(Pin::new(&mut this.tcp).poll_shutdown(cx))?;
                *this.lingering.insert(Instant::now())
            }
        };
        this.poll_linger(cx, since).map(Ok)
    }
}

/// A timer that is made when first needed and moved only when it has run out too early.
#[derive(Default)]
struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whom it wakes.
    waker: Option<Waker>,
}

impl Timer {
    /// Whether it is armed and wakes this task.
    fn will_wake(&self, cx: &Context<'_>) -> bool {
        self.sleep.as_ref().is_some_and(|sleep| !sleep.is_elapsed())
            && self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()))
    }

    /// Ready once `due` has passed. A timer that is armed for later than `due` is moved.
    fn poll(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
        loop {
            if sleep.deadline() > due {
                sleep.as_mut().reset(due);
            }
            if sleep.as_mut().poll(cx).is_pending() {
                // Of a task that has used up its turn the timer hears nothing; it is polled again soon.
                self.waker = coop::has_budget_remaining().then(|| cx.waker().clone());
                return Poll::Pending;
            }
            if sleep.deadline() >= due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::pin;

    #[tokio::test]
    async fn a_socket_sends_small_writes_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (tcp, _) = listener.accept().await.unwrap();
        assert!(!tcp.nodelay().unwrap());
        let socket = Socket::new(tcp, Arc::default(), &Limits::default(), Instant::now()).unwrap();
        assert!(socket.tcp.nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_timer_wakes_the_task_that_it_heard_of() {
        let due = Instant::now() + Duration::from_secs(60);
        let [mut timer, mut unheard] = [(); 2].map(|()| Timer::default());
        poll_fn(|cx| {
            assert!(!timer.will_wake(cx));
            assert!(timer.poll(cx, due).is_pending() && timer.will_wake(cx));
            assert!(!timer.will_wake(&Context::from_waker(Waker::noop())));
            let mut turn = pin!(async {
                loop {
                    coop::consume_budget().await;
                }
            });
            let used_up: Poll<()> = turn.as_mut().poll(cx);
            assert!(used_up.is_pending());
            assert!(unheard.poll(cx, due).is_pending() && !unheard.will_wake(cx));
            Poll::Ready(())
        })
        .await;
    }
}
