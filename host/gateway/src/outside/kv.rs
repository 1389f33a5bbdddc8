//! `kv` for plugins in the server's store, where `plugins.kv` says so: it outlives the server, and gateways with one Postgres
//! share it. The store counts and keeps (`tidegate_store::Kv`); here a call gets its turn (`kv/gate.rs`) and its time.

mod gate;

use gate::{Access, Gate, Pass};
use metrics::counter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_sandbox::capability::{BoxFuture, CapabilityError, KvRefusal, KvStore, Namespace};
use tidegate_store::{Db, Kv, KvError, Space, StoreError};
use tidegate_types::clock::unix_s;
use tokio::sync::oneshot;

/// How long a plugin waits for its turn, and then for the store. Both together are shorter than the time that tools, retrievers,
/// memories and observers have where the operator says nothing else, so that these hear of it and can do without; a guard
/// of prompts or whole answers hears of the first, and one of streams ends by its own time.
const PATIENCE: Duration = Duration::from_secs(1);

/// For how long a store that has not answered is left alone: a plugin that asks again and again waits once.
const PAUSE: Duration = Duration::from_secs(1);

/// A call that nobody waits for any more goes on for so many times as long again, and no longer: a connection may be dead
/// without a word.
const PATIENCES: u32 = 10;

/// What a plugin is told of a store that fails.
const AWAY: &str = "the server's store does not answer now; do without, or try again";

/// What a plugin is told whose turn does not come. It says nothing of the store, which answers those before it.
const BUSY: &str = "too many calls are before this one at the server's store; do without, or try again";

/// What it is told of one whose disk is full. `denied` as any storage that is full: no fault of the plugin's.
const FULL: &str = "the server's store has no room left, which its operator has to make";

/// How often what nobody can read any more is looked for.
const SWEEPING: Duration = Duration::from_secs(30);

/// Storage in the server's database.
pub struct StoreKv {
    kv: Kv,
    cap: u64,
    gate: Arc<Gate>,
    patience: Duration,
    /// The second in which somebody last logged that the store failed.
    logged_s: AtomicU64,
}

/// A call that is dropped before it is answered was not answered.
struct Unanswered;

impl Unanswered {
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        count_failure();
    }
}

fn count_failure() {
    counter!("tidegate_plugin_kv_failures_total").increment(1);
}

impl StoreKv {
    /// Storage of at most `cap` bytes over all namespaces.
    pub fn new(db: Db, cap: u64) -> Self {
        Self::with_patience(db, cap, PATIENCE)
    }

    /// The same, whose calls wait for so long.
    pub fn with_patience(db: Db, cap: u64, patience: Duration) -> Self {
        let kv = Kv::new(db, cap);
        let gate = Arc::new(Gate::new(kv.at_once(), PAUSE));
        Self { kv, cap, gate, patience, logged_s: AtomicU64::new(0) }
    }

    /// Removes what is over, and what archived projects had, again and again.
    pub async fn tidy(self: Arc<Self>) {
        loop {
            if let Err(error) = self.kv.sweep().await {
                tracing::warn!("what plugins kept in the store and is over stays for now: {error}");
            }
            tokio::time::sleep(SWEEPING).await;
        }
    }

    /// Does a call when it is its turn; one that takes too long is waited for no longer.
    async fn turn<T, F>(
        &self,
        access: Access,
        asked: Asked<'_>,
        call: impl FnOnce(Kv) -> F,
    ) -> Result<T, CapabilityError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, KvError>> + Send + 'static,
    {
        if !self.gate.admits(&access) {
            return Err(self.away("it did not a moment ago"));
        }
        let unanswered = Unanswered;
        let Ok(pass) = tokio::time::timeout(self.patience, self.gate.enter(&access)).await else {
            unanswered.answered();
            self.gate.found_busy(&access);
            self.failed(&format!("other calls were before it for {} ms", self.patience.as_millis()));
            return Err(CapabilityError::Unavailable(BUSY.into()));
        };
        // Gone with this call: what would change something afterwards is given up.
        let caller = Arc::new(());
        let call = call(self.kv.of_caller(&caller));
        let (tell, told) = oneshot::channel();
        let at_store = AtStore { gate: Arc::clone(&self.gate), access, patience: self.patience, _pass: pass };
        tokio::spawn(at_store.does(call, tell));
        let heard = told.await;
        unanswered.answered();
        match heard {
            Ok(Some(done)) => done.map_err(|error| self.explain(error, asked)),
            Ok(None) => {
                let waited = self.patience.as_millis();
                self.failed(&format!("no answer in {waited} ms"));
                Err(CapabilityError::Timeout(format!("the server's store has not answered in {waited} ms")))
            }
            Err(broken) => Err(self.away(&broken.to_string())),
        }
    }

    /// In the sandbox's words; what the database says is the operator's alone.
    fn explain(&self, error: KvError, asked: Asked<'_>) -> CapabilityError {
        let Asked { key, delta, bound } = asked;
        match error {
            KvError::Quota => KvRefusal::Quota(bound).into(),
            KvError::Cap => KvRefusal::Cap(self.cap).into(),
            KvError::TooMuch => KvRefusal::TooMuch(bound).into(),
            KvError::NotANumber => KvRefusal::NotANumber(key).into(),
            KvError::Overflow(number) => KvRefusal::Overflow(key, number, delta).into(),
            KvError::Store(error @ StoreError::Full(_)) => {
                self.failed(&error.to_string());
                CapabilityError::Denied(FULL.into())
            }
            KvError::GivenUp | KvError::Store(_) => self.away(&error.to_string()),
        }
    }

    /// Nothing can be said but that the store does not answer.
    fn away(&self, why: &str) -> CapabilityError {
        self.failed(why);
        CapabilityError::Unavailable(AWAY.into())
    }

    /// Says so to the operator, once a second at most: a database that is away fails each call.
    fn failed(&self, why: &str) {
        count_failure();
        let now = unix_s();
        if self.logged_s.swap(now, Ordering::Relaxed) != now {
            tracing::warn!("a plugin could not use `kv` in the store: {why}");
        }
    }
}

/// A call that has its turn: for as long as it holds that, its connection is of no use to others.
struct AtStore {
    gate: Arc<Gate>,
    access: Access,
    patience: Duration,
    _pass: Pass,
}

impl AtStore {
    /// Does the call and tells what came of it, or `None` once it is late. Notes for the others whether the store answers, also
    /// where its own caller's stage has no time to wait for that, and goes on with a late one for that long.
    async fn does<T>(
        self,
        call: impl Future<Output = Result<T, KvError>>,
        tell: oneshot::Sender<Option<Result<T, KvError>>>,
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

    fn note<T>(&self, done: &Result<T, KvError>) {
        match done {
            // A write that somebody else held up for too long says nothing of the store.
            Err(KvError::Store(error)) if error.is_held() => self.gate.held_up(&self.access),
            Err(KvError::Store(StoreError::Unavailable(_))) => self.gate.failed(),
            _ => self.gate.answered(&self.access),
        }
    }
}

/// What a call is about, for saying why it was refused.
#[derive(Clone, Copy, Default)]
struct Asked<'a> {
    key: &'a str,
    delta: i64,
    /// The namespace's quota, or the most that may be read.
    bound: u64,
}

fn space(name: &Namespace) -> Space<'_> {
    Space { owner: name.tenant.as_str(), plugin: &name.plugin }
}

impl KvStore for StoreKv {
    fn waits(&self) -> bool {
        true
    }

    fn get_many<'a>(
        &'a self,
        name: &'a Namespace,
        keys: &'a [String],
        most: u64,
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, CapabilityError>> {
        let asked = Asked { bound: most, ..Asked::default() };
        let (access, name, keys) = (Gate::to_read(name), name.clone(), keys.to_vec());
        let getting = move |kv: Kv| async move { kv.get_many(space(&name), &keys, most).await };
        Box::pin(self.turn(access, asked, getting))
    }

    fn set<'a>(
        &'a self,
        name: &'a Namespace,
        key: String,
        value: Vec<u8>,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<(), CapabilityError>> {
        let (access, name) = (self.gate.to_write(name), name.clone());
        let setting = move |kv: Kv| async move { kv.set(space(&name), &key, &value, ttl, quota).await };
        Box::pin(self.turn(access, Asked { bound: quota, ..Asked::default() }, setting))
    }

    fn increment<'a>(
        &'a self,
        name: &'a Namespace,
        key: String,
        delta: i64,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<i64, CapabilityError>> {
        let (access, name, named) = (self.gate.to_write(name), name.clone(), key.clone());
        let adding = move |kv: Kv| async move { kv.increment(space(&name), &key, delta, ttl, quota).await };
        Box::pin(async move { self.turn(access, Asked { key: &named, delta, bound: quota }, adding).await })
    }

    fn delete<'a>(&'a self, name: &'a Namespace, key: &'a str) -> BoxFuture<'a, Result<(), CapabilityError>> {
        let (access, name, key) = (self.gate.to_write(name), name.clone(), key.to_owned());
        let deleting = move |kv: Kv| async move { kv.delete(space(&name), &key).await };
        Box::pin(self.turn(access, Asked::default(), deleting))
    }
}

#[cfg(test)]
mod tests;
