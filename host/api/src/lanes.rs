//! The threads that serve connections, each with a runtime of its own. A connection stays on the thread that it was
//! given to, with everything that its requests do: on a runtime whose threads share their work, each event wakes a
//! second thread to look for some, which costs a call of the kernel on each side and a cold cache (decision 0017). A
//! connection goes to the thread with the fewest. Streams of HTTP/2, of which one connection may have a hundred, run on
//! the shared runtime, so that one client is not bound to one core.

use crate::flow;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Work that blocks, such as looking for tokens in a long prompt, has threads beside each lane's; at most these.
const MAX_BLOCKING: usize = 64;

/// The threads. They end when this is dropped, and what still runs on them with them.
pub struct Lanes {
    lanes: Vec<Lane>,
    _end: DropGuard,
}

struct Lane {
    runtime: Handle,
    open: Arc<AtomicUsize>,
}

impl Lanes {
    /// Starts `count` threads, or one for 0.
    pub fn start(count: usize) -> std::io::Result<Self> {
        let end = CancellationToken::new();
        let lane = |number| Lane::start(number, end.clone());
        let lanes = (0..count.max(1)).map(lane).collect::<std::io::Result<_>>()?;
        Ok(Self { lanes, _end: end.drop_guard() })
    }

    /// The runtime with the fewest connections, and the count of one more.
    pub(crate) fn next(&self) -> (Handle, Open) {
        let fewest = self.lanes.iter().min_by_key(|lane| lane.open.load(Ordering::Relaxed));
        let lane = fewest.unwrap_or(&self.lanes[0]);
        (lane.runtime.clone(), Open::count(&lane.open))
    }
}

impl Lane {
    fn start(number: usize, end: CancellationToken) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(MAX_BLOCKING).build()?;
        let handle = runtime.handle().clone();
        let serve = move || runtime.block_on(end.cancelled());
        std::thread::Builder::new().name(format!("http-{number}")).spawn(serve)?;
        Ok(Self { runtime: handle, open: Arc::default() })
    }
}

/// Counts a connection of a thread until it is dropped.
pub(crate) struct Open(Arc<AtomicUsize>);

impl Open {
    fn count(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(open))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Spawns the tasks of streams on a given runtime.
#[derive(Clone)]
pub(crate) struct Spread {
    pub(crate) runtime: Handle,
    /// How long the client of a stream may take nothing of it.
    pub(crate) patience: Duration,
}

impl<F> hyper::rt::Executor<F> for Spread
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.runtime.spawn(flow::watched(future, self.patience));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_goes_to_the_thread_with_the_fewest() {
        let lanes = Lanes::start(3).unwrap();
        let mut open: Vec<_> = (0..6).map(|_| lanes.next()).collect();
        let on = |open: &[(Handle, Open)], lane: usize| {
            open.iter().filter(|(runtime, _)| runtime.id() == lanes.lanes[lane].runtime.id()).count()
        };
        assert_eq!([0, 1, 2].map(|lane| on(&open, lane)), [2, 2, 2]);
        let quiet = lanes.lanes[1].runtime.id();
        open.retain(|(runtime, _)| runtime.id() != quiet);
        assert_eq!([lanes.next().0.id(), lanes.next().0.id()], [quiet, quiet]);
    }

    #[test]
    fn the_threads_end_with_what_runs_on_them() {
        struct Told(std::sync::mpsc::SyncSender<()>);
        impl Drop for Told {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let lanes = Lanes::start(1).unwrap();
        let (sender, told) = std::sync::mpsc::sync_channel(1);
        let told_at_the_end = Told(sender);
        lanes.next().0.spawn(async move {
            std::future::pending::<()>().await;
            drop(told_at_the_end);
        });
        drop(lanes);
        told.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
    }
}
