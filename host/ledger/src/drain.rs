//! Takes the journal into a database. A batch and the place behind it are committed together, so that whatever fails,
//! and however often, each event arrives once. Memory is bounded by one batch: what waits, waits in the files.

use crate::entry::Event;
use crate::error::LedgerError;
use crate::ledger::Ledger;
use metrics::{counter, gauge};
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A future that is not named.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A place in a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The file's number.
    pub segment: u64,
    /// Bytes from its start.
    pub offset: u64,
}

/// Events in the journal's order, and the place behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// What happened.
    pub events: Vec<Event>,
    /// Where the next batch begins.
    pub behind: Position,
}

/// A database that keeps what a journal says.
pub trait Sink: Send + Sync {
    /// Why it could not.
    type Error: Display;

    /// Up to where it has the journal of this id; the start where it knows none.
    fn position(&self, journal: &str) -> BoxFuture<'_, Result<Position, Self::Error>>;

    /// Keeps a batch and its place together, or neither. An event that is there already changes nothing.
    fn commit(&self, journal: &str, batch: Batch) -> BoxFuture<'_, Result<(), Self::Error>>;
}

/// Reads the journal and writes the database, until it is stopped.
pub struct Drain<S> {
    ledger: Arc<Ledger>,
    sink: S,
}

/// The first pause after a failure, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// How long nothing may come before files are looked at for deletion.
const QUIET: Duration = Duration::from_secs(10);

impl<S: Sink> Drain<S> {
    /// From a ledger's journal into `sink`.
    pub fn new(ledger: Arc<Ledger>, sink: S) -> Self {
        Self { ledger, sink }
    }

    /// Runs for ever; dropping the future stops it between two batches or loses nothing of one.
    pub async fn run(&self) {
        let mut pause = PAUSES[0];
        let mut at = None;
        loop {
            match self.step(&mut at).await {
                Ok(true) => pause = PAUSES[0],
                Ok(false) => {
                    pause = PAUSES[0];
                    // A timeout is as good as a call: both look again.
                    let _ = tokio::time::timeout(QUIET, self.ledger.journal().grown.notified()).await;
                }
                Err(why) => {
                    counter!("tidegate_ledger_drain_failures_total").increment(1);
                    tracing::warn!("usage waits in the journal, since the database does not take it: {why}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES[1]);
                    // Whether the batch was kept is not known: the database says where it is.
                    at = None;
                }
            }
        }
    }

    /// Takes everything that is there, however much has waited; gives up when nothing was taken for as long as `patience`.
    /// Says whether that was all.
    pub async fn catch_up(&self, patience: Duration) -> bool {
        let mut since = Instant::now();
        let mut at = None;
        while since.elapsed() < patience {
            match tokio::time::timeout(patience, self.step(&mut at)).await {
                Ok(Ok(true)) => since = Instant::now(),
                Ok(Ok(false)) => return true,
                Ok(Err(why)) => {
                    tracing::warn!("usage waits in the journal, since the database does not take it: {why}");
                    // Whether the batch was kept is not known: the database says where it is.
                    at = None;
                    tokio::time::sleep(PAUSES[0]).await;
                }
                Err(_) => return false,
            }
        }
        false
    }

    /// One batch; says whether there was one.
    async fn step(&self, at: &mut Option<Position>) -> Result<bool, String> {
        let journal = self.ledger.journal();
        let from = match *at {
            Some(at) => at,
            None => {
                let known = self.sink.position(&journal.id()).await.map_err(|error| error.to_string())?;
                journal.place(known).map_err(|error| error.to_string())?
            }
        };
        let reading = Arc::clone(journal);
        let read = tokio::task::spawn_blocking(move || reading.read(from)).await.map_err(|error| error.to_string())?;
        let (events, behind) = read.map_err(|error| error.to_string())?;
        let (count, moved) = (events.len(), behind != from);
        if count > 0 || behind.segment != from.segment {
            self.sink.commit(&journal.id(), Batch { events, behind }).await.map_err(|error| error.to_string())?;
        }
        *at = Some(behind);
        gauge!("tidegate_ledger_drained_segment").set(behind.segment as f64);
        if !moved || behind.segment != from.segment {
            self.forget(behind).map_err(|error| error.to_string())?;
        }
        Ok(moved)
    }

    /// Deletes files that the database has whole and that no open generation began in.
    fn forget(&self, behind: Position) -> Result<(), LedgerError> {
        let oldest = self.ledger.oldest_open_segment().map_or(behind.segment, |open| open.min(behind.segment));
        self.ledger.journal().forget_before(oldest)
    }
}
