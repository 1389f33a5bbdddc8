//! What plugins may reach outside of the sandbox, by grant: HTTP through `egress`, models through
//! `pipeline`, what they keep through `store`.

mod at_store;
pub mod http;
pub mod kv;
pub mod models;
pub mod vectors;

use kv::StoreKv;
use std::sync::Arc;
use std::time::Duration;
use tidegate_store::Db;
use vectors::StoreVectors;

/// How often what nobody needs any more is looked for.
const SWEEPING: Duration = Duration::from_secs(30);

/// What plugins keep in the server's store, or kept there before its operator changed their mind. Clones are the same one.
#[derive(Clone)]
pub(crate) struct InStore {
    pub(crate) kv: Arc<StoreKv>,
    pub(crate) vectors: Arc<StoreVectors>,
}

impl InStore {
    /// With at most so many bytes in `kv`, and in `vectors` of one owner and of all.
    pub(crate) fn new(db: &Db, kv_bytes: u64, owner_bytes: u64, vectors_bytes: u64) -> Self {
        let kv = StoreKv::new(db, kv_bytes);
        let vectors = StoreVectors::new(db, owner_bytes, vectors_bytes).beside(&kv);
        Self { kv: Arc::new(kv), vectors: Arc::new(vectors) }
    }

    /// Removes what nobody needs any more, again and again. One after the other: there is one connection beside those of calls.
    pub(crate) async fn tidy(self) {
        loop {
            self.kv.sweep().await;
            self.vectors.sweep().await;
            tokio::time::sleep(SWEEPING).await;
        }
    }
}
