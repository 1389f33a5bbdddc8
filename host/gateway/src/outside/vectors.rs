//! `vectors` for plugins in the server's store, where `plugins.vectors` says so: they outlive the server, and gateways with one
//! Postgres share them. The store counts and keeps (`tidegate_store::Vectors`); each gateway searches a copy in its memory, of
//! each owner who searches. Before a search the copy is brought up to what the store has: so what was put before is found,
//! whichever gateway put it, and what was deleted is not.

use super::at_store::{AtStore, Gate, Kept, PATIENCE};
use super::kv::StoreKv;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_sandbox::capability::{
    BoxFuture, CapabilityError, Collection, MemoryVectors, Namespace, VectorChange, VectorEntry, VectorHit,
    VectorRefusal, VectorStore,
};
use tidegate_store::{self as store, Changes, Cursor, Db, KeepError, KeptVector, Vectors};
use tidegate_types::TenantId;

/// A copy that nobody has searched for so long is let go of.
const IDLE: Duration = Duration::from_secs(3600);

/// What a plugin is told whose search would take too long to begin. The next one goes on from here.
const COPYING: &str = "what the project keeps is still being read from the server's store; do without, or try again";

/// Vector collections in the server's database.
pub struct StoreVectors {
    vectors: Vectors,
    owner_bytes: u64,
    total_bytes: u64,
    at_store: AtStore,
    copies: Mutex<HashMap<TenantId, Arc<OwnerCopy>>>,
}

/// Of all that one owner keeps.
struct OwnerCopy {
    /// What is searched: it has all that the store had at some moment, and perhaps some that came later.
    shown: RwLock<Arc<MemoryVectors>>,
    following: tokio::sync::Mutex<Following>,
    /// How many have asked for it to be brought up, ever.
    asked: AtomicU64,
    used: Mutex<Instant>,
}

/// How far a copy has come.
#[derive(Default)]
struct Following {
    /// The one that is shown, or the one that will be.
    copy: Option<Arc<MemoryVectors>>,
    cursor: Option<Cursor>,
    /// So many of those who asked, the first ones, have what they asked for.
    answered: u64,
}

impl StoreVectors {
    /// Collections of at most so many bytes of one tenant, or project, and so many of all together; and at most twice as many where
    /// tenants have less than their share of these.
    pub fn new(db: &Db, owner_bytes: u64, total_bytes: u64) -> Self {
        Self::with_patience(db, owner_bytes, total_bytes, PATIENCE)
    }

    /// The same, whose calls wait for so long.
    pub fn with_patience(db: &Db, owner_bytes: u64, total_bytes: u64, patience: Duration) -> Self {
        let (vectors, at_store) = (Vectors::new(db, total_bytes), AtStore::new(db, patience, Kept::Vectors));
        Self { vectors, owner_bytes, total_bytes, at_store, copies: Mutex::default() }
    }

    /// The same, whose calls take turns with those of `kv`: they wait for the same connections.
    pub fn beside(self, kv: &StoreKv) -> Self {
        let at_store = AtStore::with_gate(Arc::clone(&kv.at_store.gate), self.at_store.patience, Kept::Vectors);
        Self { at_store, ..self }
    }

    /// Removes what was deleted, what archived projects had, and copies that nobody searches.
    pub(super) async fn sweep(&self) {
        if let Err(error) = self.vectors.sweep().await {
            tracing::warn!("vectors that plugins deleted from the store stay for now: {error}");
        }
        self.copies.lock().retain(|_, copy| copy.used.lock().elapsed() < IDLE || Arc::strong_count(copy) > 1);
    }

    fn copy(&self, owner: &TenantId) -> Arc<OwnerCopy> {
        let mut copies = self.copies.lock();
        let copy = copies.entry(owner.clone()).or_default();
        *copy.used.lock() = Instant::now();
        Arc::clone(copy)
    }

    /// Brings an owner's copy up to what the store has now. Those who ask meanwhile share the next time. Whoever has waited
    /// for others and read pieces for as long as `patience` leaves what is missing to the next.
    async fn bring_up(&self, collection: &Collection, patience: Duration) -> Result<(), CapabilityError> {
        let copy = self.copy(&collection.owner);
        let own = copy.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let began = Instant::now();
        let mut following = self.at_store.others(copy.following.lock()).await?;
        if following.answered >= own {
            return Ok(());
        }
        let answered = copy.asked.load(Ordering::SeqCst);
        while !self.follow(collection, &mut following).await? {
            if began.elapsed() >= patience {
                self.at_store.failed("the copy of what its project keeps is not whole yet");
                return Err(CapabilityError::Unavailable(COPYING.into()));
            }
        }
        following.answered = answered;
        *copy.shown.write() = following.copy.clone().unwrap_or_else(|| Arc::new(MemoryVectors::copy()));
        Ok(())
    }

    /// Goes on by one piece; says whether it was the last.
    async fn follow(&self, collection: &Collection, following: &mut Following) -> Result<bool, CapabilityError> {
        let (vectors, owner, since) = (self.vectors.clone(), collection.owner.clone(), following.cursor.clone());
        let asking = move |_: &_| async move { vectors.changes(owner.as_str(), since.as_ref()).await };
        let changes = self.at_store.turn(Gate::to_read(&namespace(collection)), asking, |_| None).await?;
        let Changes::Some { changes, cursor, is_last } = changes else {
            *following = Following { answered: following.answered, ..Following::default() };
            return Ok(matches!(changes, Changes::None));
        };
        let copy = following.copy.get_or_insert_with(|| Arc::new(MemoryVectors::copy()));
        for (name, change) in changes {
            copy.follow(&Collection { name: name.into(), ..collection.clone() }, changed(change));
        }
        following.cursor = Some(cursor);
        Ok(is_last)
    }

    /// In the sandbox's words.
    fn refusal(&self, error: &KeepError) -> Option<CapabilityError> {
        let refusal = match error {
            KeepError::Quota => VectorRefusal::Quota(self.owner_bytes),
            KeepError::Cap => VectorRefusal::Cap(self.total_bytes),
            KeepError::Dimensions(odd) => VectorRefusal::Dimensions(*odd),
            _ => return None,
        };
        Some(refusal.into())
    }

    /// Does a call that is given up when nobody waits for it any more.
    async fn change<T, F>(&self, collection: &Collection, call: impl FnOnce(Vectors) -> F) -> Result<T, CapabilityError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, KeepError>> + Send + 'static,
    {
        let access = self.at_store.gate.to_write(&namespace(collection));
        let vectors = self.vectors.of_share(collection.share.as_str());
        let call = |caller: &_| call(vectors.of_caller(caller));
        self.at_store.turn(access, call, |error| self.refusal(error)).await
    }
}

impl Default for OwnerCopy {
    fn default() -> Self {
        Self {
            shown: RwLock::new(Arc::new(MemoryVectors::copy())),
            following: tokio::sync::Mutex::default(),
            asked: AtomicU64::new(0),
            used: Mutex::new(Instant::now()),
        }
    }
}

/// Whoever writes an owner's vectors: of no plugin alone.
fn namespace(collection: &Collection) -> Namespace {
    Namespace { plugin: "".into(), owner: collection.owner.clone(), share: collection.share.clone() }
}

fn of(collection: &Collection) -> store::Collection<'_> {
    store::Collection { owner: collection.owner.as_str(), name: &collection.name }
}

fn kept(entry: VectorEntry) -> KeptVector {
    let cost = MemoryVectors::cost(&entry) as u64;
    let VectorEntry { id, vector, payload } = entry;
    KeptVector { id, vector, payload, cost }
}

fn changed(change: store::VectorChange) -> VectorChange {
    match change {
        store::VectorChange::Put(KeptVector { id, vector, payload, .. }) => {
            VectorChange::Put(VectorEntry { id, vector, payload })
        }
        store::VectorChange::Deleted(id) => VectorChange::Deleted(id),
    }
}

impl VectorStore for StoreVectors {
    fn waits(&self) -> bool {
        true
    }

    fn ready<'a>(&'a self, collection: &'a Collection) -> BoxFuture<'a, Result<(), CapabilityError>> {
        Box::pin(self.bring_up(collection, self.at_store.patience))
    }

    fn search<'a>(
        &'a self,
        collection: &'a Collection,
        vector: Vec<f32>,
        top_k: usize,
        filter: Vec<(String, String)>,
    ) -> BoxFuture<'a, Result<Vec<VectorHit>, CapabilityError>> {
        let shown = Arc::clone(&self.copy(&collection.owner).shown.read());
        Box::pin(async move { shown.search(collection, vector, top_k, filter).await })
    }

    fn put<'a>(
        &'a self,
        collection: &'a Collection,
        entries: Vec<VectorEntry>,
    ) -> BoxFuture<'a, Result<(), CapabilityError>> {
        let (to, quota) = (collection.clone(), self.owner_bytes);
        let entries = entries.into_iter().map(kept).collect();
        let putting = move |vectors: Vectors| async move { vectors.put(of(&to), entries, quota).await };
        Box::pin(self.change(collection, putting))
    }

    fn delete<'a>(
        &'a self,
        collection: &'a Collection,
        ids: Vec<String>,
    ) -> BoxFuture<'a, Result<u32, CapabilityError>> {
        let from = collection.clone();
        let deleting = move |vectors: Vectors| async move { vectors.delete(of(&from), &ids).await };
        Box::pin(async move { Ok(u32::try_from(self.change(collection, deleting).await?).unwrap_or(u32::MAX)) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::at_store::BUSY;
    use super::*;
    use tidegate_store::Place;

    const LONG: Duration = Duration::from_secs(3600);

    fn entry(id: &str) -> VectorEntry {
        VectorEntry { id: id.into(), vector: vec![1.0], payload: Vec::new() }
    }

    async fn ids(store: &StoreVectors, own: &Collection) -> String {
        let hits = store.search(own, vec![1.0], 999, Vec::new()).await.unwrap();
        hits.into_iter().map(|hit| hit.id).collect()
    }

    async fn stored(folder: &tempfile::TempDir) -> StoreVectors {
        let db = Db::open(&Place::Folder(folder.path().into())).await.unwrap();
        // However slow the machine is, a store that has failed is left alone.
        let at_store = AtStore::with_gate(Arc::new(Gate::new(2, LONG)), LONG, Kept::Vectors);
        StoreVectors { at_store, ..StoreVectors::new(&db, 1 << 20, 1 << 20) }
    }

    /// As on a gateway that has not followed while another one forgot what was deleted.
    #[tokio::test]
    async fn a_copy_is_searched_until_the_next_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (store, own) = (stored(&folder).await, Collection::of_tenant("c", TenantId::new("t")));
        store.put(&own, vec![entry("a"), entry("b")]).await.unwrap();
        store.ready(&own).await.unwrap();
        store.delete(&own, vec!["a".into()]).await.unwrap();
        let pool = sqlx::AnyPool::connect(&format!("sqlite://{}/tidegate.db", folder.path().display())).await.unwrap();
        let aging = "UPDATE plugin_vectors SET deleted_ms = 1 WHERE deleted_ms IS NOT NULL";
        sqlx::query(aging).execute(&pool).await.unwrap();
        assert_eq!(store.vectors.sweep().await.unwrap(), 1);
        let copy = store.copy(&own.owner);
        let mut following = copy.following.lock().await;
        assert!(!store.follow(&own, &mut following).await.unwrap(), "it is to begin anew");
        assert!(following.cursor.is_none());
        assert_eq!(ids(&store, &own).await, "ab");
        drop(following);
        store.ready(&own).await.unwrap();
        assert_eq!(ids(&store, &own).await, "b");
    }

    #[tokio::test]
    async fn a_copy_that_takes_long_is_made_by_one_search_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let (store, own) = (stored(&folder).await, Collection::of_tenant("c", TenantId::new("t")));
        // More than two pieces.
        for ids in [0..150, 150..300] {
            store.put(&own, ids.map(|n| entry(&format!("{n} "))).collect()).await.unwrap();
        }
        let mut searches = 1;
        while let Err(refused) = store.bring_up(&own, Duration::ZERO).await {
            assert_eq!(refused, CapabilityError::Unavailable(COPYING.into()));
            assert_eq!(ids(&store, &own).await, "", "a part of a copy is not searched");
            searches += 1;
        }
        assert_eq!((searches, ids(&store, &own).await.matches(' ').count()), (3, 300));
        let following = store.copy(&own.owner);
        let _following = following.following.lock().await;
        let hasty = AtStore::with_gate(Arc::clone(&store.at_store.gate), Duration::from_millis(20), Kept::Vectors);
        let store = StoreVectors { at_store: hasty, ..store };
        let refused = tokio::time::timeout(LONG / 60, store.ready(&own)).await.expect("it waits without an end");
        assert_eq!(refused, Err(CapabilityError::Unavailable(BUSY.into())));
    }

    #[tokio::test]
    async fn those_who_ask_at_once_share_a_look_that_began_after_they_asked() {
        let folder = tempfile::tempdir().unwrap();
        let (store, own) = (Arc::new(stored(&folder).await), Collection::of_tenant("c", TenantId::new("t")));
        let copy = store.copy(&own.owner);
        let following = copy.following.lock().await;
        let asking = (0..5).map(|_| {
            let (store, own) = (Arc::clone(&store), own.clone());
            tokio::spawn(async move { store.ready(&own).await })
        });
        let asking: Vec<_> = asking.collect();
        while copy.asked.load(Ordering::SeqCst) < 5 {
            tokio::task::yield_now().await;
        }
        drop(following);
        // Whoever is first answers all; the others need no store.
        let mut asking = asking.into_iter();
        asking.next().unwrap().await.unwrap().unwrap();
        assert_eq!(copy.following.lock().await.answered, 5);
        store.at_store.gate.failed();
        for asked in asking {
            asked.await.unwrap().unwrap();
        }
        store.ready(&own).await.unwrap_err();
    }
}
