//! `kv` for plugins in the server's store, where `plugins.kv` says so: it outlives the server, and gateways with one Postgres
//! share it. The store counts and keeps (`tidegate_store::Kv`); here a call gets its turn and its time.

use metrics::counter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_sandbox::capability::{BoxFuture, CapabilityError, KvRefusal, KvStore, Namespace};
use tidegate_store::{Db, Kv, KvError, Space};
use tidegate_types::clock::unix_s;
use tokio::sync::Semaphore;

/// How long a plugin waits for the store. Shorter than most stages' time, so that it hears of it and can do without.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a plugin is told of a store that fails.
const AWAY: &str = "the server's store does not answer now; do without, or try again";

/// How often what nobody can read any more is looked for.
const SWEEPING: Duration = Duration::from_secs(30);

/// Storage in the server's database.
pub struct StoreKv {
    kv: Kv,
    cap: u64,
    /// What else needs the database finds it, whatever plugins do.
    turns: Arc<Semaphore>,
    patience: Duration,
    /// The second in which somebody last logged that the store failed.
    logged_s: AtomicU64,
}

impl StoreKv {
    /// Storage of at most `cap` bytes over all namespaces.
    pub fn new(db: Db, cap: u64) -> Self {
        Self::with_patience(db, cap, PATIENCE)
    }

    /// The same, whose calls wait for so long.
    pub fn with_patience(db: Db, cap: u64, patience: Duration) -> Self {
        let kv = Kv::new(db, cap);
        let turns = Arc::new(Semaphore::new(kv.at_once()));
        Self { kv, cap, turns, patience, logged_s: AtomicU64::new(0) }
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

    /// Does a call when it is its turn; one that takes too long is waited for no longer. It has its turn until the database has
    /// answered, for so long its connection is of no use to others.
    async fn turn<T, F>(&self, asked: Asked<'_>, call: impl FnOnce(Kv) -> F) -> Result<T, CapabilityError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, KvError>> + Send + 'static,
    {
        let in_turn = async {
            // Nobody closes it.
            let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
            let call = call(self.kv.clone());
            let done = tokio::spawn(async move {
                let done = call.await;
                drop(turn);
                done
            });
            done.await
        };
        match tokio::time::timeout(self.patience, in_turn).await {
            Ok(Ok(done)) => done.map_err(|error| self.explain(error, asked)),
            Ok(Err(broken)) => {
                self.failed(&broken.to_string());
                Err(CapabilityError::Unavailable(AWAY.into()))
            }
            Err(_) => {
                let waited = self.patience.as_millis();
                self.failed(&format!("no answer in {waited} ms"));
                Err(CapabilityError::Timeout(format!("the server's store has not answered in {waited} ms")))
            }
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
            KvError::Store(error) => {
                self.failed(&error.to_string());
                CapabilityError::Unavailable(AWAY.into())
            }
        }
    }

    /// Says so to the operator, once a second at most: a database that is away fails each call.
    fn failed(&self, why: &str) {
        counter!("tidegate_plugin_kv_failures_total").increment(1);
        let now = unix_s();
        if self.logged_s.swap(now, Ordering::Relaxed) != now {
            tracing::warn!("a plugin could not use `kv` in the store: {why}");
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
    fn get_many<'a>(
        &'a self,
        name: &'a Namespace,
        keys: &'a [String],
        most: u64,
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, CapabilityError>> {
        let asked = Asked { bound: most, ..Asked::default() };
        let (name, keys) = (name.clone(), keys.to_vec());
        let getting = move |kv: Kv| async move { kv.get_many(space(&name), &keys, most).await };
        Box::pin(self.turn(asked, getting))
    }

    fn set<'a>(
        &'a self,
        name: &'a Namespace,
        key: String,
        value: Vec<u8>,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<(), CapabilityError>> {
        let name = name.clone();
        let setting = move |kv: Kv| async move { kv.set(space(&name), &key, &value, ttl, quota).await };
        Box::pin(self.turn(Asked { bound: quota, ..Asked::default() }, setting))
    }

    fn increment<'a>(
        &'a self,
        name: &'a Namespace,
        key: String,
        delta: i64,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<i64, CapabilityError>> {
        let (name, named) = (name.clone(), key.clone());
        let adding = move |kv: Kv| async move { kv.increment(space(&name), &key, delta, ttl, quota).await };
        Box::pin(async move { self.turn(Asked { key: &named, delta, bound: quota }, adding).await })
    }

    fn delete<'a>(&'a self, name: &'a Namespace, key: &'a str) -> BoxFuture<'a, Result<(), CapabilityError>> {
        let (name, key) = (name.clone(), key.to_owned());
        Box::pin(self.turn(Asked::default(), move |kv: Kv| async move { kv.delete(space(&name), &key).await }))
    }
}
