//! Streams of HTTP/2 whose clients take nothing. A client gives each of its streams a window; where that is used up, no
//! write waits at the socket, and what a connection of HTTP/1 is given up for (`socket.rs`) is not seen there. So the task
//! of a stream looks by itself: when its body has handed out a piece and is not asked for the next one, the stream ends,
//! with its answer and all that is held for it. The connection goes on, since others share it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

tokio::task_local! {
    /// Of the stream that a task is for.
    static FLOW: Arc<Flow>;
}

/// How the body of a stream gets on.
#[derive(Default)]
struct Flow {
    /// Pieces that it has handed out.
    pieces: AtomicU64,
    /// Whether the next piece is waited for, and not the client.
    waits: AtomicBool,
}

/// Notes how a body was polled. Nobody looks at that but within [`watched`].
pub(crate) fn note<T>(polled: &Poll<T>) {
    // Without a watched task there is nothing to note.
    let _ = FLOW.try_with(|flow| {
        flow.waits.store(polled.is_pending(), Ordering::Relaxed);
        if polled.is_ready() {
            flow.pieces.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// Runs the task of a stream, to its end or until its client has taken nothing for as long as `patience`.
pub(crate) async fn watched<F: Future>(task: F, patience: Duration) {
    let flow = Arc::new(Flow::default());
    // Boxed, since an argument of a future and what is made of it would both have its size.
    let mut task = Box::pin(FLOW.scope(Arc::clone(&flow), task));
    let mut stall = Stall::default();
    poll_fn(|cx| match task.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => stall.poll(&flow, patience, cx),
    })
    .await;
}

/// The wait for a client to take a piece: which, and until when.
#[derive(Default)]
struct Stall(Option<(u64, Pin<Box<Sleep>>)>);

impl Stall {
    /// Ready when the wait has been too long.
    fn poll(&mut self, flow: &Flow, patience: Duration, cx: &mut Context<'_>) -> Poll<()> {
        let pieces = flow.pieces.load(Ordering::Relaxed);
        if pieces == 0 || flow.waits.load(Ordering::Relaxed) {
            self.0 = None;
            return Poll::Pending;
        }
        if self.0.as_ref().is_none_or(|(piece, _)| *piece != pieces) {
            self.0 = Some((pieces, Box::pin(sleep(patience))));
        }
        self.0.as_mut().map_or(Poll::Pending, |(_, end)| end.as_mut().poll(cx))
    }
}
