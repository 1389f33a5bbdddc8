//! `kv` for plugins in the server's store, where `plugins.kv` says so: it outlives the server, and gateways with one Postgres
//! share it. The store counts and keeps (`tidegate_store::Kv`).

use super::at_store::{AtStore, Gate, Kept, PATIENCE};
use std::time::Duration;
use tidegate_sandbox::capability::{BoxFuture, CapabilityError, KvRefusal, KvStore, Namespace};
use tidegate_store::{Db, KeepError, Kv, Space};

/// Storage in the server's database.
pub struct StoreKv {
    kv: Kv,
    cap: u64,
    pub(super) at_store: AtStore,
}

impl StoreKv {
    /// Storage of `cap` bytes over all namespaces, and of at most twice as much where tenants have less than their share of it.
    pub fn new(db: &Db, cap: u64) -> Self {
        Self::with_patience(db, cap, PATIENCE)
    }

    /// The same, whose calls wait for so long.
    pub fn with_patience(db: &Db, cap: u64, patience: Duration) -> Self {
        Self { kv: Kv::new(db, cap), cap, at_store: AtStore::new(db, patience, Kept::Kv) }
    }

    /// Removes what is over, and what archived projects had.
    pub(super) async fn sweep(&self) {
        if let Err(error) = self.kv.sweep().await {
            tracing::warn!("what plugins kept in the store and is over stays for now: {error}");
        }
    }

    /// Does a call that is given up when nobody waits for it any more.
    async fn change<T, F>(
        &self,
        name: &Namespace,
        call: impl FnOnce(Kv) -> F,
        asked: Asked<'_>,
    ) -> Result<T, CapabilityError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, KeepError>> + Send + 'static,
    {
        let kv = self.kv.of_share(name.share.as_str());
        let call = |caller: &_| call(kv.of_caller(caller));
        self.at_store.turn(self.at_store.gate.to_write(name), call, |error| self.refusal(error, asked)).await
    }

    /// In the sandbox's words.
    fn refusal(&self, error: &KeepError, asked: Asked<'_>) -> Option<CapabilityError> {
        let Asked { key, delta, bound } = asked;
        let refusal = match error {
            KeepError::Quota => KvRefusal::Quota(bound),
            KeepError::Cap => KvRefusal::Cap(self.cap),
            KeepError::TooMuch => KvRefusal::TooMuch(bound),
            KeepError::NotANumber => KvRefusal::NotANumber(key),
            KeepError::Overflow(number) => KvRefusal::Overflow(key, *number, delta),
            KeepError::Dimensions(_) | KeepError::GivenUp | KeepError::Store(_) => return None,
        };
        Some(refusal.into())
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
    Space { owner: name.owner.as_str(), plugin: &name.plugin }
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
        let (kv, access, name, keys) = (self.kv.clone(), Gate::to_read(name), name.clone(), keys.to_vec());
        let getting = move |_: &_| async move { kv.get_many(space(&name), &keys, most).await };
        Box::pin(self.at_store.turn(access, getting, move |error| self.refusal(error, asked)))
    }

    fn set<'a>(
        &'a self,
        name: &'a Namespace,
        key: String,
        value: Vec<u8>,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<(), CapabilityError>> {
        let (of, asked) = (name.clone(), Asked { bound: quota, ..Asked::default() });
        let setting = move |kv: Kv| async move { kv.set(space(&of), &key, &value, ttl, quota).await };
        Box::pin(self.change(name, setting, asked))
    }

    fn increment<'a>(
        &'a self,
        name: &'a Namespace,
        key: String,
        delta: i64,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<i64, CapabilityError>> {
        let (of, named) = (name.clone(), key.clone());
        let adding = move |kv: Kv| async move { kv.increment(space(&of), &key, delta, ttl, quota).await };
        Box::pin(async move { self.change(name, adding, Asked { key: &named, delta, bound: quota }).await })
    }

    fn delete<'a>(&'a self, name: &'a Namespace, key: &'a str) -> BoxFuture<'a, Result<(), CapabilityError>> {
        let (of, key) = (name.clone(), key.to_owned());
        let deleting = move |kv: Kv| async move { kv.delete(space(&of), &key).await };
        Box::pin(self.change(name, deleting, Asked::default()))
    }
}

#[cfg(test)]
mod tests;
