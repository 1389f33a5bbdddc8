//! What ends the program: Ctrl-C, SIGTERM, and the terminal's end, which is the same signal as a request to reload.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What SIGHUP means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hangup {
    /// Take the config file anew, whenever it comes; while the server starts it waits, and while it stops it is nothing.
    Reloads,
    /// The terminal has ended, and the server with it.
    Stops,
    /// Whoever started the program wants it to go on without a terminal (`nohup`).
    IsIgnored,
}

impl Hangup {
    /// To be asked before anything listens for signals.
    pub(crate) fn of(has_config: bool) -> Self {
        match has_config {
            true => Self::Reloads,
            false if is_ignored() => Self::IsIgnored,
            false => Self::Stops,
        }
    }

    /// From now on SIGHUP is a request, where it is one.
    pub(crate) fn requests(self) -> anyhow::Result<Option<Signal>> {
        Ok((self == Self::Reloads).then(|| signal(SignalKind::hangup())).transpose()?)
    }
}

/// Whether the program was started with SIGHUP ignored, which a handler would undo.
fn is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let bit = SignalKind::hangup().as_raw_value() - 1;
    mask >> bit & 1 == 1
}

/// Whatever ends the program, from when it is listened for: until then the system ends it at once, unless it is the first process
/// of a container.
pub(crate) struct Stops {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Stops {
    pub(crate) fn listen(hangup: Hangup) -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: (hangup == Hangup::Stops).then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = next(self.hangup.as_mut()) => {}
        }
    }
}

/// Waits for the next one; for ever without a signal to wait for.
pub(crate) async fn next(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
