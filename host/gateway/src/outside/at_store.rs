//! Calls of plugins at the server's store: each gets its turn (`at_store/gate.rs`) and its time, whatever it keeps there. That is
//! `kv` (`kv.rs`) and `vectors` (`vectors.rs`), which wait for the same connections.

mod gate;

use gate::Pass;
pub(super) use gate::{Access, Gate};
use metrics::counter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_sandbox::capability::CapabilityError;
use tidegate_store::{Db, KeepError, StoreError};
use tidegate_types::clock::unix_s;
use tokio::sync::oneshot;

/// How long a plugin waits for its turn, and then for the store; a search before that for as much of its copy
/// (`vectors.rs`). All of it together is shorter than the time that tools, retrievers, memories and observers have where
/// the operator says nothing else, so that these hear of it and can do without; a guard of prompts or whole answers
/// hears of the first, and one of streams ends by its own time.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// For how long a store that has not answered is left alone: a plugin that asks again and again waits once.
const PAUSE: Duration = Duration::from_secs(1);

/// A call that nobody waits for any more goes on for so many times as long again, and no longer: a connection may be dead
/// without a word.
const PATIENCES: u32 = 10;

/// What a plugin is told of a store that fails.
pub(super) const AWAY: &str = "the server's store does not answer now; do without, or try again";

/// What a plugin is told whose turn does not come. It says nothing of the store, which answers those before it.
pub(super) const BUSY: &str = "too many calls are before this one at the server's store; do without, or try again";

/// What it is told of one whose disk is full. `denied` as any storage that is full: no fault of the plugin's.
const FULL: &str = "the server's store has no room left, which its operator has to make";

/// The calls of one capability.
pub(super) struct AtStore {
    pub(super) gate: Arc<Gate>,
    pub(super) patience: Duration,
    kept: Kept,
    /// The second in which somebody last logged that the store failed.
    logged_s: AtomicU64,
}

/// What plugins keep there.
#[derive(Clone, Copy)]
pub(super) enum Kept {
    Kv,
    Vectors,
}

impl Kept {
    fn name(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Vectors => "vectors",
        }
    }

    fn count_failure(self) {
        match self {
            Self::Kv => counter!("tidegate_plugin_kv_failures_total"),
            Self::Vectors => counter!("tidegate_plugin_vectors_failures_total"),
        }
        .increment(1);
    }
}

/// A call that is dropped before it is answered was not answered.
struct Unanswered(Kept);

impl Unanswered {
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.count_failure();
    }
}

impl AtStore {
    /// Calls that wait for so long.
    pub(super) fn new(db: &Db, patience: Duration, kept: Kept) -> Self {
        Self::with_gate(Arc::new(Gate::new(db.at_once_for_plugins(), PAUSE)), patience, kept)
    }

    /// The same, whose turns are those of others.
    pub(super) fn with_gate(gate: Arc<Gate>, patience: Duration, kept: Kept) -> Self {
        Self { gate, patience, kept, logged_s: AtomicU64::new(0) }
    }

    /// Does a call when it is its turn; one that takes too long is waited for no longer. `refusal` has the words for what is no fault
    /// of the store. The call is given what is gone as soon as nobody waits for it.
    pub(super) async fn turn<T, F>(
        &self,
        access: Access,
        call: impl FnOnce(&Arc<()>) -> F,
        refusal: impl FnOnce(&KeepError) -> Option<CapabilityError>,
    ) -> Result<T, CapabilityError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, KeepError>> + Send + 'static,
    {
        if !self.gate.admits(&access) {
            return Err(self.away("it did not a moment ago"));
        }
        let pass = self.others(self.gate.enter(&access)).await.inspect_err(|_| self.gate.found_busy(&access))?;
        // Gone with this call: what would change something afterwards is given up.
        let caller = Arc::new(());
        let call = call(&caller);
        let (tell, told) = oneshot::channel();
        let at_work = AtWork { gate: Arc::clone(&self.gate), access, patience: self.patience, _pass: pass };
        let unanswered = Unanswered(self.kept);
        tokio::spawn(at_work.does(call, tell));
        let heard = told.await;
        unanswered.answered();
        match heard {
            Ok(Some(done)) => done.map_err(|error| refusal(&error).unwrap_or_else(|| self.explain(&error))),
            Ok(None) => {
                let waited = self.patience.as_millis();
                self.failed(&format!("no answer in {waited} ms"));
                Err(CapabilityError::Timeout(format!("the server's store has not answered in {waited} ms")))
            }
            Err(broken) => Err(self.away(&broken.to_string())),
        }
    }

    /// Waits for those who are before a call, no longer than it would wait for the store.
    pub(super) async fn others<T>(&self, wait: impl Future<Output = T>) -> Result<T, CapabilityError> {
        let unanswered = Unanswered(self.kept);
        let waited = tokio::time::timeout(self.patience, wait).await;
        unanswered.answered();
        waited.map_err(|_| {
            self.failed(&format!("other calls were before it for {} ms", self.patience.as_millis()));
            CapabilityError::Unavailable(BUSY.into())
        })
    }

    /// What the database says is the operator's alone.
    fn explain(&self, error: &KeepError) -> CapabilityError {
        if matches!(error, KeepError::Store(StoreError::Full(_))) {
            self.failed(&error.to_string());
            return CapabilityError::Denied(FULL.into());
        }
        self.away(&error.to_string())
    }

    /// Nothing can be said but that the store does not answer.
    fn away(&self, why: &str) -> CapabilityError {
        self.failed(why);
        CapabilityError::Unavailable(AWAY.into())
    }

    /// Says so to the operator, once a second at most: a database that is away fails each call.
    pub(super) fn failed(&self, why: &str) {
        self.kept.count_failure();
        let now = unix_s();
        if self.logged_s.swap(now, Ordering::Relaxed) != now {
            tracing::warn!("a plugin could not use `{}` in the store: {why}", self.kept.name());
        }
    }
}

/// A call that has its turn: for as long as it holds that, its connection is of no use to others.
struct AtWork {
    gate: Arc<Gate>,
    access: Access,
    patience: Duration,
    _pass: Pass,
}

impl AtWork {
    /// Does the call and tells what came of it, or `None` once it is late. Notes for the others whether the store answers, also
    /// where its own caller's stage has no time to wait for that, and goes on with a late one for that long.
    async fn does<T>(
        self,
        call: impl Future<Output = Result<T, KeepError>>,
        tell: oneshot::Sender<Option<Result<T, KeepError>>>,
    ) {
        let mut call = std::pin::pin!(call);
        if let Ok(done) = tokio::time::timeout(self.patience, &mut call).await {
            self.note(&done);
            drop(self);
            // Nobody may wait any more.
            let _ = tell.send(Some(done));
            return;
        }
        let _late = self.gate.late(&self.access);
        let _ = tell.send(None);
        match tokio::time::timeout(self.patience * PATIENCES, call).await {
            Ok(done) => self.note(&done),
            Err(_) => self.gate.timed_out(&self.access),
        }
    }

    fn note<T>(&self, done: &Result<T, KeepError>) {
        match done {
            // A write that somebody else held up for too long says nothing of the store.
            Err(KeepError::Store(error)) if error.is_held() => self.gate.held_up(&self.access),
            Err(KeepError::Store(StoreError::Unavailable(_))) => self.gate.failed(),
            _ => self.gate.answered(&self.access),
        }
    }
}
