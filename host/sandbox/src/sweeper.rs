//! Lets the pools drop what was idle or old for too long, once a second, and what a plugin leaves that is gone, on a thread of its
//! own: to drop an interpreter's instance takes a millisecond, and a plugin may have hundreds. The clock of CPU limits (`ticker.rs`)
//! waits for nothing.

use crate::registry::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);

/// Owns the thread; dropping it ends the thread.
pub(crate) struct Sweeper {
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

impl Sweeper {
    /// Starts the thread.
    pub(crate) fn start(registry: Arc<Registry>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let handle = std::thread::Builder::new().name("plugin-sweeper".into()).spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                std::thread::park_timeout(EVERY);
                registry.sweep(Instant::now());
            }
            // It has the last of these, which have it: nobody else ends that.
            registry.drop_left();
        })?;
        Ok(Self { stop, handle: Some(handle) })
    }

    /// It comes by at once.
    pub(crate) fn wake(&self) {
        self.handle.iter().for_each(|handle| handle.thread().unpark());
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(handle) = self.handle.take() {
            handle.thread().unpark();
            let _ = handle.join();
        }
    }
}
