//! `kv`: key-value storage, private to plugin and project, or tenant. This file bounds what a guest may send; the supplier keeps
//! the data and the quota. [`super::MemoryKv`] is the built-in one; others say why they refuse in its words, [`KvRefusal`].

use super::{BoxFuture, CapabilityError};
use crate::bindings::tidegate::plugin::kv::{Error, Host};
use crate::state::HostState;
use std::sync::Arc;
use std::time::Duration;
use tidegate_types::TenantId;

const MAX_KEY_BYTES: usize = 512;
const MAX_KEYS: usize = 1024;

/// Whose data: a guest can name neither.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// The plugin's name in the config.
    pub plugin: Arc<str>,
    /// The owner of the request: its tenant, or the project of it that it is of.
    pub owner: TenantId,
    /// Whose share of turns and of bytes it takes: the tenant, which may have many projects.
    pub share: TenantId,
}

impl Namespace {
    /// What a plugin keeps of a tenant that is in none of its projects.
    pub fn of_tenant(plugin: impl Into<Arc<str>>, tenant: TenantId) -> Self {
        Self { plugin: plugin.into(), share: tenant.clone(), owner: tenant }
    }
}

/// Why a supplier refuses. A plugin reads the same words whoever keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvRefusal<'a> {
    /// The namespace would have more than these bytes.
    Quota(u64),
    /// All namespaces together would have more than these bytes, and those of this one's tenant more than its share.
    Cap(u64),
    /// The values are more than these bytes together.
    TooMuch(u64),
    /// What this key has cannot be added to.
    NotANumber(&'a str),
    /// What this key has, and what was to be added to it.
    Overflow(&'a str, i64, i64),
}

impl From<KvRefusal<'_>> for CapabilityError {
    fn from(refusal: KvRefusal<'_>) -> Self {
        match refusal {
            KvRefusal::Quota(bytes) => {
                Self::Denied(format!("the stage's {bytes} bytes of storage (`kv_kib`) are used up"))
            }
            KvRefusal::Cap(bytes) => {
                let what = "of storage of all plugins (`plugins.kv_mib`)";
                Self::Denied(format!("the {bytes} bytes {what} are used up, and its tenant has its share of them"))
            }
            KvRefusal::TooMuch(bytes) => Self::Invalid(format!("more than {bytes} bytes at once; ask for fewer keys")),
            KvRefusal::NotANumber(key) => Self::Invalid(format!("`{key}` is not a number")),
            KvRefusal::Overflow(key, number, delta) => {
                Self::Invalid(format!("`{key}` is {number}; adding {delta} overflows"))
            }
        }
    }
}

/// A supplier of key-value storage. Keys are 1 to 512 bytes. A store that is full says
/// [`CapabilityError::Denied`]; it never drops what it accepted before its time to live is over.
pub trait KvStore: Send + Sync {
    /// Whether its answers may be long in coming, as a database's: who waits for one takes no place of those that compute.
    fn waits(&self) -> bool {
        false
    }

    /// The values of several keys, in their order; [`CapabilityError::Invalid`] where they are more than `most` bytes
    /// together, before so many are copied.
    fn get_many<'a>(
        &'a self,
        space: &'a Namespace,
        keys: &'a [String],
        most: u64,
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, CapabilityError>>;

    /// Sets a value, which lives for `ttl` where one is given. `quota` bounds the bytes of the namespace.
    fn set<'a>(
        &'a self,
        space: &'a Namespace,
        key: String,
        value: Vec<u8>,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<(), CapabilityError>>;

    /// Adds to a number (decimal text) and answers the sum; an absent one counts from 0 and then lives for `ttl`,
    /// which later increments leave alone. Atomic.
    fn increment<'a>(
        &'a self,
        space: &'a Namespace,
        key: String,
        delta: i64,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<i64, CapabilityError>>;

    /// Removes a key; an absent one is no error.
    fn delete<'a>(&'a self, space: &'a Namespace, key: &'a str) -> BoxFuture<'a, Result<(), CapabilityError>>;
}

/// Refuses a key that no plugin may name.
pub fn check_kv_key(key: &str) -> Result<(), CapabilityError> {
    if (1..=MAX_KEY_BYTES).contains(&key.len()) {
        return Ok(());
    }
    Err(CapabilityError::Invalid(format!("a key of {} bytes; keys have 1 to {MAX_KEY_BYTES}", key.len())))
}

impl Host for HostState {
    async fn get(&mut self, key: String) -> wasmtime::Result<Result<Option<Vec<u8>>, Error>> {
        let found = self.read_many("kv.get", std::slice::from_ref(&key)).await;
        Ok(found.map(|mut values| values.pop().flatten()).map_err(Into::into))
    }

    async fn get_many(&mut self, keys: Vec<String>) -> wasmtime::Result<Result<Vec<Option<Vec<u8>>>, Error>> {
        Ok(self.read_many("kv.get-many", &keys).await.map_err(Into::into))
    }

    async fn set(&mut self, key: String, value: Vec<u8>, ttl_ms: Option<u64>) -> wasmtime::Result<Result<(), Error>> {
        let done = async {
            let (quota, ttl) = (self.may_write("kv.set", &key)?, ttl_ms.map(Duration::from_millis));
            self.meter.waiting(self.blueprint.kv.set(&self.namespace, key, value, ttl, quota)).await
        };
        Ok(done.await.map_err(Into::into))
    }

    async fn increment(
        &mut self,
        key: String,
        delta: i64,
        ttl_ms: Option<u64>,
    ) -> wasmtime::Result<Result<i64, Error>> {
        let sum = async {
            let (quota, ttl) = (self.may_write("kv.increment", &key)?, ttl_ms.map(Duration::from_millis));
            self.meter.waiting(self.blueprint.kv.increment(&self.namespace, key, delta, ttl, quota)).await
        };
        Ok(sum.await.map_err(Into::into))
    }

    async fn delete(&mut self, key: String) -> wasmtime::Result<Result<(), Error>> {
        let done = async {
            self.may_store("kv.delete", std::slice::from_ref(&key))?;
            self.meter.waiting(self.blueprint.kv.delete(&self.namespace, &key)).await
        };
        Ok(done.await.map_err(Into::into))
    }
}

impl HostState {
    async fn read_many(
        &mut self,
        function: &'static str,
        keys: &[String],
    ) -> Result<Vec<Option<Vec<u8>>>, CapabilityError> {
        let quota = self.may_store(function, keys)?;
        // No more is kept; but a key may be named again and again.
        let most = if keys.len() > 1 { quota } else { u64::MAX };
        self.meter.waiting(self.blueprint.kv.get_many(&self.namespace, keys, most)).await
    }

    /// As [`HostState::may_store`], for what stays. A key is content too: it may be made of what was asked.
    fn may_write(&mut self, function: &'static str, key: &String) -> Result<u64, CapabilityError> {
        let quota = self.may_store(function, std::slice::from_ref(key))?;
        self.may_keep().map(|()| quota)
    }

    /// The quota, when the capability is there and the keys are in bounds.
    fn may_store(&mut self, function: &'static str, keys: &[String]) -> Result<u64, CapabilityError> {
        self.allow("kv", function)?;
        let granted = self.blueprint.grants.kv_bytes;
        let quota = granted.ok_or_else(|| CapabilityError::Denied("`kv` is not granted here".into()))?;
        if keys.len() > MAX_KEYS {
            return Err(CapabilityError::Invalid(format!("{} keys at once; at most {MAX_KEYS}", keys.len())));
        }
        keys.iter().try_for_each(|key| check_kv_key(key)).map(|()| quota)
    }
}
