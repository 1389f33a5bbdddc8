//! The built-in vector store: in memory, exact, gone with the process; or a copy of one that is not (`copy.rs`). Every search
//! looks at every entry of its collection, which is right for thousands of entries and wrong for millions.
//!
//! Nobody waits long for another: a search goes in short pieces, between which it lets go of the entries and of its thread;
//! what a change costs does not grow with what is kept. So what is put while a search is under way may be in it or not.

mod contents;
mod copy;
mod nearest;

use super::vectors::{Collection, VectorEntry, VectorHit, VectorRefusal, VectorStore};
use super::{BoxFuture, CapabilityError};
use crate::slots::share_of;
use nearest::{Nearest, unit};
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tidegate_fair::Places;
use tidegate_types::TenantId;

pub use contents::Contents;
pub use copy::VectorChange;

/// What an entry costs beside its own bytes.
const OVERHEAD: usize = 128;
/// What a pair of a payload costs beside its own bytes: many empty ones are memory, too.
const PAIR: usize = size_of::<(String, String)>();

type Id = Arc<str>;
type Payload = Arc<[(String, String)]>;
type Entries = BTreeMap<Id, Entry>;

/// Vector collections in memory.
pub struct MemoryVectors {
    collections: RwLock<Kept>,
    /// Bytes of all collections of one tenant, or project.
    owner_bytes: usize,
    /// Bytes of all collections; past it a tenant may still have its share.
    total_bytes: usize,
}

struct Kept {
    entries: HashMap<Collection, Entries>,
    /// Of all collections of one owner.
    owners: HashMap<TenantId, usize>,
    /// Of all of them, and of each tenant.
    held: Places,
}

#[derive(Clone)]
struct Entry {
    /// Of length 1.
    unit: Vec<f32>,
    payload: Payload,
}

impl Entry {
    fn bytes(&self, id: &str) -> usize {
        OVERHEAD + id.len() + payload_bytes(&self.payload) + self.unit.len() * size_of::<f32>()
    }
}

fn payload_bytes(payload: &[(String, String)]) -> usize {
    payload.iter().map(|(key, value)| PAIR + key.len() + value.len()).sum()
}

impl MemoryVectors {
    /// A store in which each tenant, or project, may keep so many bytes, and all of them so many in total; and at most twice as
    /// many where tenants have less than their share of it.
    pub fn new(owner_bytes: usize, total_bytes: usize) -> Self {
        let kept = Kept { entries: HashMap::new(), owners: HashMap::new(), held: Places::new(total_bytes) };
        Self { collections: RwLock::new(kept), owner_bytes, total_bytes }
    }

    async fn find(&self, collection: &Collection, mut nearest: Nearest) -> Result<Vec<VectorHit>, CapabilityError> {
        while self.look(collection, &mut nearest) {
            tokio::task::yield_now().await;
        }
        nearest.hits()
    }

    /// One piece of a search; says whether there are more.
    fn look(&self, collection: &Collection, nearest: &mut Nearest) -> bool {
        self.collections.read().entries.get(collection).is_some_and(|entries| nearest.look(entries))
    }

    fn insert(&self, collection: &Collection, new: Vec<VectorEntry>) -> Result<(), CapabilityError> {
        let dimensions = new.first().map(|entry| entry.vector.len());
        let new: Entries = new.into_iter().map(kept).collect();
        let mut all = self.collections.write();
        let dimensions = all.dimensions(collection).or(dimensions);
        if let Some(odd) = new.values().find(|entry| Some(entry.unit.len()) != dimensions) {
            return Err(VectorRefusal::Dimensions(odd.unit.len()).into());
        }
        let added: usize = new.iter().map(|(id, entry)| entry.bytes(id)).sum();
        let replaced = all.replaced_by(collection, &new);
        self.check_room(&all, collection, added, replaced)?;
        if new.is_empty() {
            return Ok(());
        }
        all.resize(collection, added, replaced);
        all.entries.entry(collection.clone()).or_default().extend(new);
        Ok(())
    }

    fn check_room(
        &self,
        all: &Kept,
        collection: &Collection,
        added: usize,
        replaced: usize,
    ) -> Result<(), CapabilityError> {
        let of_owner = all.owners.get(&collection.owner).copied().unwrap_or_default();
        if of_owner + added - replaced > self.owner_bytes {
            return Err(VectorRefusal::Quota(self.owner_bytes as u64).into());
        }
        let grown = added.saturating_sub(replaced);
        if grown > 0 && !all.held.has_room(&share_of(collection.share.clone()), grown) {
            return Err(VectorRefusal::Cap(self.total_bytes as u64).into());
        }
        Ok(())
    }

    fn remove(&self, collection: &Collection, ids: &[String]) -> u32 {
        let mut all = self.collections.write();
        let Some(of_collection) = all.entries.get_mut(collection) else { return 0 };
        let (mut removed, mut bytes) = (0, 0);
        for (id, entry) in ids.iter().filter_map(|id| of_collection.remove_entry(id.as_str())) {
            bytes += entry.bytes(&id);
            removed += 1;
        }
        if of_collection.is_empty() {
            all.entries.remove(collection);
        }
        all.resize(collection, 0, bytes);
        removed
    }
}

fn kept(entry: VectorEntry) -> (Id, Entry) {
    (entry.id.into(), Entry { unit: unit(&entry.vector), payload: entry.payload.into() })
}

impl Kept {
    /// Of the vectors of a collection that has some.
    fn dimensions(&self, collection: &Collection) -> Option<usize> {
        self.entries.get(collection)?.values().next().map(|entry| entry.unit.len())
    }

    /// Bytes of what `new` takes the place of.
    fn replaced_by(&self, collection: &Collection, new: &Entries) -> usize {
        let Some(entries) = self.entries.get(collection) else { return 0 };
        new.keys().filter_map(|id| entries.get(id).map(|entry| entry.bytes(id))).sum()
    }

    /// Counts what came and what went; of an owner that keeps nothing, nothing is left.
    fn resize(&mut self, collection: &Collection, added: usize, removed: usize) {
        let owner = &collection.owner;
        self.held.change(&share_of(collection.share.clone()), removed, added);
        let of_owner = self.owners.entry(owner.clone()).or_default();
        *of_owner = *of_owner + added - removed;
        if *of_owner == 0 {
            self.owners.remove(owner);
        }
    }
}

impl VectorStore for MemoryVectors {
    fn search<'a>(
        &'a self,
        collection: &'a Collection,
        vector: Vec<f32>,
        top_k: usize,
        filter: Vec<(String, String)>,
    ) -> BoxFuture<'a, Result<Vec<VectorHit>, CapabilityError>> {
        Box::pin(async move { self.find(collection, Nearest::new(&vector, top_k, filter)).await })
    }

    fn put<'a>(
        &'a self,
        collection: &'a Collection,
        entries: Vec<VectorEntry>,
    ) -> BoxFuture<'a, Result<(), CapabilityError>> {
        Box::pin(async move { self.insert(collection, entries) })
    }

    fn delete<'a>(
        &'a self,
        collection: &'a Collection,
        ids: Vec<String>,
    ) -> BoxFuture<'a, Result<u32, CapabilityError>> {
        Box::pin(async move { Ok(self.remove(collection, &ids)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::TenantId;

    fn of(tenant: &str) -> Collection {
        Collection::of_tenant("notes", TenantId::new(tenant))
    }

    fn entry(id: &str, vector: &[f32], kind: &str) -> VectorEntry {
        VectorEntry { id: id.into(), vector: vector.into(), payload: vec![("kind".into(), kind.into())] }
    }

    fn found(
        store: &MemoryVectors,
        of: &Collection,
        vector: &[f32],
        top_k: usize,
        filter: &[(&str, &str)],
    ) -> Vec<VectorHit> {
        let filter = filter.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let mut nearest = Nearest::new(vector, top_k, filter);
        while store.look(of, &mut nearest) {}
        nearest.hits().unwrap()
    }

    fn ids(hits: Vec<VectorHit>) -> Vec<String> {
        hits.into_iter().map(|hit| hit.id).collect()
    }

    #[test]
    fn the_nearest_come_first_whatever_their_length() {
        let store = MemoryVectors::new(1 << 20, 1 << 20);
        let entries =
            vec![entry("far", &[-1.0, 0.1], "a"), entry("near", &[9.0, 1.0], "a"), entry("mid", &[1.0, 1.0], "b")];
        store.insert(&of("a"), entries).unwrap();
        let hits = found(&store, &of("a"), &[0.1, 0.0], 10, &[]);
        assert!(hits[0].score > 0.99 && hits[2].score < -0.99, "{hits:?}");
        assert_eq!(ids(hits), ["near", "mid", "far"]);
        assert_eq!(ids(found(&store, &of("a"), &[1.0, 0.0], 1, &[])), ["near"]);
        assert_eq!(ids(found(&store, &of("a"), &[1.0, 0.0], 9, &[("kind", "b"), ("kind", "b")])), ["mid"]);
        assert_eq!(ids(found(&store, &of("a"), &[1.0, 0.0, 0.0], 9, &[])), [""; 0], "other dimensions");
    }

    #[test]
    fn what_was_kept_is_there_again_and_nothing_else() {
        let store = MemoryVectors::new(3 * entry_bytes() - 1, 3 * entry_bytes() - 1);
        store.insert(&of("a"), vec![entry("x", &[1.0], "a")]).unwrap();
        let before = store.contents();
        for _ in 0..9 {
            store.insert(&of("a"), vec![entry("y", &[1.0], "a")]).unwrap();
            store.remove(&of("a"), &["x".into()]);
            store.insert(&of("b"), vec![entry("x", &[1.0, 2.0], "a")]).unwrap();
            store.put_back(&before);
            assert_eq!(ids(found(&store, &of("a"), &[1.0], 9, &[])), ["x"]);
            assert!(found(&store, &of("b"), &[1.0, 2.0], 9, &[]).is_empty());
        }
        assert!(
            store.insert(&of("a"), vec![entry("y", &[1.0], "a"), entry("z", &[1.0], "a")]).is_err(),
            "as much is kept"
        );
    }

    #[test]
    fn a_tenants_entries_are_its_own() {
        let store = MemoryVectors::new(1 << 20, 1 << 20);
        store.insert(&of("a"), vec![entry("x", &[1.0], "a")]).unwrap();
        assert!(found(&store, &of("b"), &[1.0], 9, &[]).is_empty());
        assert_eq!(store.remove(&of("b"), &["x".into()]), 0);
        assert_eq!(store.remove(&of("a"), &["x".into(), "y".into()]), 1);
    }

    #[test]
    fn all_entries_are_put_or_none() {
        let store = MemoryVectors::new(600, 6000);
        let odd = store.insert(&of("a"), vec![entry("x", &[1.0], "a"), entry("y", &[1.0, 2.0], "a")]);
        assert!(matches!(odd, Err(CapabilityError::Invalid(_))), "{odd:?}");
        let big: Vec<_> = (0..4).map(|n| entry(&n.to_string(), &[1.0], "a")).collect();
        assert!(matches!(store.insert(&of("a"), big), Err(CapabilityError::Denied(_))));
        assert!(found(&store, &of("a"), &[1.0], 9, &[]).is_empty());
        for _ in 0..9 {
            store.insert(&of("a"), vec![entry("x", &[1.0], "a")]).unwrap();
        }
    }

    #[test]
    fn all_owners_together_have_a_limit_and_what_is_removed_counts_no_more() {
        let store = MemoryVectors::new(500, 800);
        let put = |tenant: &str, id: &str| store.insert(&of(tenant), vec![entry(id, &[1.0], "a")]);
        for (tenant, id) in [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")] {
            put(tenant, id).unwrap();
            put(tenant, id).unwrap();
        }
        let of_project = Collection { owner: TenantId::new("proj_b"), ..of("b") };
        let full = store.insert(&of_project, vec![entry("1", &[1.0], "a")]).unwrap_err();
        let why =
            "the 800 bytes of all vectors (`plugins.vectors_mib`) are used up, and its tenant has its share of them";
        assert_eq!(full, CapabilityError::Denied(why.into()));
        let own = put("a", "3").unwrap_err();
        let why = "the 500 bytes of vectors of a project, or tenant (`plugins.owner_vectors_mib`), are used up";
        assert_eq!(own, CapabilityError::Denied(why.into()));
        assert_eq!(store.remove(&of("a"), &["1".into(), "1".into()]), 1);
        store.insert(&of_project, vec![entry("1", &[1.0], "a")]).unwrap();
        assert_eq!(store.remove(&of_project, &["1".into()]), 1);
        put("c", "1").unwrap();
        assert_eq!(store.collections.read().held.held(), 4 * entry_bytes());
        for (tenant, id) in [("a", "2"), ("b", "1"), ("b", "2"), ("c", "1")] {
            assert_eq!(store.remove(&of(tenant), &[id.into()]), 1);
        }
        let all = store.collections.read();
        assert!(all.entries.is_empty() && all.owners.is_empty() && all.held.held() == 0, "{} bytes", all.held.held());
    }

    #[test]
    fn a_tenant_that_keeps_all_there_is_leaves_others_their_share() {
        let store = MemoryVectors::new(4 * entry_bytes(), 4 * entry_bytes());
        let put = |tenant: &str, id: &str| store.insert(&of(tenant), vec![entry(id, &[1.0], "a")]);
        for id in ["1", "2", "3", "4"] {
            put("a", id).unwrap();
        }
        for id in ["1", "2"] {
            put("b", id).unwrap();
        }
        assert!(put("b", "3").is_err(), "half of it is its share");
        put("c", "1").unwrap();
        put("c", "2").unwrap_err();
        put("d", "1").unwrap();
        put("e", "1").unwrap_err();
        assert_eq!(store.collections.read().held.held(), 8 * entry_bytes(), "twice as much, and no more");
    }

    #[test]
    fn pairs_that_say_nothing_count_too() {
        let store = MemoryVectors::new(1 << 20, 1 << 20);
        let payload = vec![(String::new(), String::new()); 20_000];
        let put = |id: &str| {
            store.insert(&of("a"), vec![VectorEntry { id: id.into(), vector: vec![1.0], payload: payload.clone() }])
        };
        put("1").unwrap();
        assert!(matches!(put("2"), Err(CapabilityError::Denied(_))), "two of them are nearly two megabytes");
    }

    #[tokio::test]
    async fn a_search_that_would_bring_back_too_much_is_refused() {
        let store = MemoryVectors::new(64 << 20, 64 << 20);
        let text = "x".repeat(60 << 10);
        let entries = (0..200).map(|n| entry(&n.to_string(), &[1.0], &text)).collect();
        store.insert(&of("a"), entries).unwrap();
        let own = of("a");
        let search = |top_k| store.search(&own, vec![1.0], top_k, Vec::new());
        let refused = search(200).await.unwrap_err();
        let why = "more than 8388608 bytes at once; ask for fewer entries";
        assert_eq!(refused, CapabilityError::Invalid(why.into()));
        assert_eq!(search(100).await.unwrap().len(), 100);
    }

    #[tokio::test]
    async fn a_long_search_leaves_its_thread_and_the_entries_to_others() {
        let store = MemoryVectors::new(16 << 20, 16 << 20);
        let id = |n: usize| format!("{n:05}");
        let entries = (0..10_000).map(|n| entry(&id(n), &[1.0, n as f32], "a")).collect();
        store.insert(&of("a"), entries).unwrap();
        let own = of("a");
        let mut search = store.search(&own, vec![1.0, 0.0], 2, Vec::new());
        assert!(futures_util::poll!(&mut search).is_pending(), "it is long");
        assert_eq!(store.remove(&own, &[id(5_000), id(0)]), 2);
        assert_eq!(ids(search.await.unwrap()), [id(0), id(1)], "what was there when it looked");
        assert_eq!(ids(store.search(&own, vec![1.0, 0.0], 2, Vec::new()).await.unwrap()), [id(1), id(2)]);
    }

    fn entry_bytes() -> usize {
        OVERHEAD + "1".len() + PAIR + "kind".len() + "a".len() + size_of::<f32>()
    }
}
