//! What the whole sandbox may use, and who supplies the capabilities that are not built in.

use crate::capability::{
    DocumentStore, Folders, HttpClient, KvStore, MemoryKv, MemoryVectors, ModelService, NoHttp, NoModels, VectorStore,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Bounds and suppliers of one [`crate::Sandbox`].
#[derive(Clone)]
pub struct SandboxConfig {
    /// Where compiled components are kept between runs; `None` compiles at each start.
    pub cache_dir: Option<PathBuf>,
    /// Bytes that the cache directory may hold; the least recently written components go first.
    pub cache_bytes: u64,
    /// For who builds a plugin again and again, and waits for it: it is compiled on all processors, which a server that loads one while
    /// it answers leaves to its callers, and what is compiled already of a build before is taken from the cache.
    pub for_authors: bool,
    /// The largest linear memory that a plugin's limits may ask for. Address space is reserved for each instance.
    pub max_memory_bytes: usize,
    /// Linear memory of all instances together. Past this, as past the two that follow, there is room for a tenant below
    /// its share only, and at most as much again: to be no less than one instance may have.
    pub total_memory_bytes: usize,
    /// Live instances of all plugins and tenants together.
    pub total_instances: u32,
    /// Live instances, beside those, of plugins that wait for others: they have a pool of their own, so that a slow
    /// service behind one plugin takes no instance from the others.
    pub total_waiting_instances: u32,
    /// An instance is replaced after this many calls, so that nobody comes to lean on what it remembers.
    pub recycle_after_calls: u32,
    /// An instance is replaced when it is older than this.
    pub max_age: Duration,
    /// An instance that had nothing to do for this long is dropped.
    pub max_idle: Duration,
    /// CPU time of one `describe`, or of making and configuring an instance; the wall time is five times as much, and at
    /// least 5 s. None of it is a call's.
    pub configure_cpu: Duration,
    /// Key-value storage for plugins with the `kv` grant. The built-in one is this process's memory.
    pub kv: Arc<dyn KvStore>,
    /// Opens what the `documents` grant names.
    pub documents: Arc<dyn DocumentStore>,
    /// Sends what plugins with the `http` grant send.
    pub http: Arc<dyn HttpClient>,
    /// Answers for what the `models` grant names.
    pub models: Arc<dyn ModelService>,
    /// Keeps what the `vectors` grant names; as above.
    pub vectors: Arc<dyn VectorStore>,
    /// What callers' pseudonyms are made with, which are the same wherever it is; `None` for a key of this sandbox alone.
    pub pseudonym_key: Option<[u8; 32]>,
    /// For tests of plugins: time passes as they say, and random bytes follow from a seed.
    pub fixed: Option<Fixed>,
}

/// What a plugin is told in place of the machine's time and chance.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// `clock.now-unix-ms` when nothing has passed.
    pub now_unix_ms: u64,
    /// What has passed since, which is `clock.monotonic-ms`.
    pub passed_ms: Arc<AtomicU64>,
    /// What random bytes follow from.
    pub seed: u64,
    /// How many of them calls have drawn.
    pub drawn: Arc<AtomicU64>,
}

impl SandboxConfig {
    /// What all plugins together may keep in `kv`, where nobody says otherwise.
    pub const KV_BYTES: u64 = 64 << 20;
    /// What they may keep in `vectors`.
    pub const VECTOR_BYTES: usize = 256 << 20;
    /// The same of one project, or of one tenant's requests that are in none.
    pub const OWNER_VECTOR_BYTES: usize = 64 << 20;

    /// Address space that is reserved for the memories of all instances.
    pub fn reserved_bytes(&self) -> usize {
        let memories = crate::engine::slots(self).saturating_mul(crate::engine::MEMORIES);
        self.max_memory_bytes.saturating_mul(memories as usize)
    }
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            cache_dir: None,
            cache_bytes: 512 << 20,
            for_authors: false,
            max_memory_bytes: 64 << 20,
            total_memory_bytes: 1 << 30,
            total_instances: 256,
            total_waiting_instances: 512,
            recycle_after_calls: 1000,
            max_age: Duration::from_secs(600),
            max_idle: Duration::from_secs(60),
            configure_cpu: Duration::from_secs(1),
            kv: Arc::new(MemoryKv::new(Self::KV_BYTES)),
            documents: Arc::new(Folders::default()),
            http: Arc::new(NoHttp),
            models: Arc::new(NoModels),
            vectors: Arc::new(MemoryVectors::new(Self::OWNER_VECTOR_BYTES, Self::VECTOR_BYTES)),
            pseudonym_key: None,
            fixed: None,
        }
    }
}
