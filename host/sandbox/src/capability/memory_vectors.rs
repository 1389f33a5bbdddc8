//! The built-in vector store: in memory, exact, gone with the process. Every search looks at every entry of its
//! collection, which is right for thousands of entries and wrong for millions.

use super::vectors::{Collection, VectorEntry, VectorHit, VectorStore};
use super::{BoxFuture, CapabilityError};
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};

/// What an entry costs beside its own bytes.
const OVERHEAD: usize = 128;

/// Vector collections in memory.
pub struct MemoryVectors {
    collections: RwLock<Kept>,
    /// Bytes of all collections of one tenant, or project.
    owner_bytes: usize,
    /// Bytes of all collections.
    total_bytes: usize,
}

#[derive(Default)]
struct Kept {
    entries: HashMap<Collection, BTreeMap<String, Entry>>,
    /// Of all of them.
    bytes: usize,
}

struct Entry {
    /// Of length 1.
    unit: Vec<f32>,
    payload: Vec<(String, String)>,
}

impl Entry {
    fn bytes(&self, id: &str) -> usize {
        let payload: usize = self.payload.iter().map(|(key, value)| key.len() + value.len()).sum();
        OVERHEAD + id.len() + payload + self.unit.len() * size_of::<f32>()
    }
}

impl MemoryVectors {
    /// A store in which each tenant, or project, may keep so many bytes, and all of them so many in total.
    pub fn new(owner_bytes: usize, total_bytes: usize) -> Self {
        Self { collections: RwLock::default(), owner_bytes, total_bytes }
    }

    fn find(
        &self,
        collection: &Collection,
        vector: &[f32],
        top_k: usize,
        filter: &[(String, String)],
    ) -> Vec<VectorHit> {
        let kept = self.collections.read();
        let Some(entries) = kept.entries.get(collection) else { return Vec::new() };
        let asked = unit(vector);
        let wanted =
            |entry: &Entry| entry.unit.len() == asked.len() && filter.iter().all(|pair| entry.payload.contains(pair));
        let mut hits: Vec<(f32, &String, &Entry)> =
            entries.iter().filter(|(_, e)| wanted(e)).map(|(id, e)| (dot(&asked, &e.unit), id, e)).collect();
        hits.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
        let hit = |(score, id, entry): (f32, &String, &Entry)| VectorHit {
            id: id.clone(),
            score: score.clamp(-1.0, 1.0),
            payload: entry.payload.clone(),
        };
        hits.into_iter().take(top_k).map(hit).collect()
    }

    fn insert(&self, collection: &Collection, new: Vec<VectorEntry>) -> Result<(), CapabilityError> {
        let mut kept = self.collections.write();
        let dimensions = kept.entries.get(collection).and_then(|entries| entries.values().next());
        let dimensions = dimensions.map(|entry| entry.unit.len()).or_else(|| new.first().map(|e| e.vector.len()));
        if let Some(odd) = new.iter().find(|entry| Some(entry.vector.len()) != dimensions) {
            let message = format!("a vector of {} dimensions; the collection's have others", odd.vector.len());
            return Err(CapabilityError::Invalid(message));
        }
        let new: BTreeMap<String, Entry> = new
            .into_iter()
            .map(|entry| (entry.id, Entry { unit: unit(&entry.vector), payload: entry.payload }))
            .collect();
        let (added, replaced) = (bytes_of(&new), kept.replaced_by(collection, &new));
        if kept.of_owner(collection) + added - replaced > self.owner_bytes {
            let (most, key) = (self.owner_bytes, "plugins.owner_vectors_mib");
            let message = format!("the {most} bytes of vectors of a project, or tenant (`{key}`), are used up");
            return Err(CapabilityError::Denied(message));
        }
        if kept.bytes + added - replaced > self.total_bytes {
            let message = format!("the {} bytes of all vectors (`plugins.vectors_mib`) are used up", self.total_bytes);
            return Err(CapabilityError::Denied(message));
        }
        kept.bytes = kept.bytes + added - replaced;
        kept.entries.entry(collection.clone()).or_default().extend(new);
        Ok(())
    }

    fn remove(&self, collection: &Collection, ids: &[String]) -> u32 {
        let mut kept = self.collections.write();
        let Kept { entries, bytes } = &mut *kept;
        let Some(of_collection) = entries.get_mut(collection) else { return 0 };
        let mut removed = 0;
        for (id, entry) in ids.iter().filter_map(|id| of_collection.remove_entry(id)) {
            *bytes -= entry.bytes(&id);
            removed += 1;
        }
        if of_collection.is_empty() {
            entries.remove(collection);
        }
        removed
    }
}

impl Kept {
    /// Bytes of all collections of the one's owner.
    fn of_owner(&self, collection: &Collection) -> usize {
        let own = self.entries.iter().filter(|(name, _)| name.tenant == collection.tenant);
        own.map(|(_, entries)| bytes_of(entries)).sum()
    }

    /// Bytes of what `new` takes the place of.
    fn replaced_by(&self, collection: &Collection, new: &BTreeMap<String, Entry>) -> usize {
        let Some(entries) = self.entries.get(collection) else { return 0 };
        new.keys().filter_map(|id| entries.get(id).map(|entry| entry.bytes(id))).sum()
    }
}

fn bytes_of(entries: &BTreeMap<String, Entry>) -> usize {
    entries.iter().map(|(id, entry)| entry.bytes(id)).sum()
}

impl VectorStore for MemoryVectors {
    fn search<'a>(
        &'a self,
        collection: &'a Collection,
        vector: Vec<f32>,
        top_k: usize,
        filter: Vec<(String, String)>,
    ) -> BoxFuture<'a, Result<Vec<VectorHit>, CapabilityError>> {
        Box::pin(async move { Ok(self.find(collection, &vector, top_k, &filter)) })
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

fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    vector.iter().map(|x| (f64::from(*x) / length) as f32).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::TenantId;

    fn of(tenant: &str) -> Collection {
        Collection { tenant: TenantId::new(tenant), name: "notes".into() }
    }

    fn entry(id: &str, vector: &[f32], kind: &str) -> VectorEntry {
        VectorEntry { id: id.into(), vector: vector.into(), payload: vec![("kind".into(), kind.into())] }
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
        let hits = store.find(&of("a"), &[0.1, 0.0], 10, &[]);
        assert!(hits[0].score > 0.99 && hits[2].score < -0.99, "{hits:?}");
        assert_eq!(ids(hits), ["near", "mid", "far"]);
        assert_eq!(ids(store.find(&of("a"), &[1.0, 0.0], 1, &[])), ["near"]);
        assert_eq!(ids(store.find(&of("a"), &[1.0, 0.0], 9, &[("kind".into(), "b".into())])), ["mid"]);
        assert_eq!(ids(store.find(&of("a"), &[1.0, 0.0, 0.0], 9, &[])), [""; 0], "other dimensions");
    }

    #[test]
    fn a_tenants_entries_are_its_own() {
        let store = MemoryVectors::new(1 << 20, 1 << 20);
        store.insert(&of("a"), vec![entry("x", &[1.0], "a")]).unwrap();
        assert!(store.find(&of("b"), &[1.0], 9, &[]).is_empty());
        assert_eq!(store.remove(&of("b"), &["x".into()]), 0);
        assert_eq!(store.remove(&of("a"), &["x".into(), "y".into()]), 1);
    }

    #[test]
    fn all_entries_are_put_or_none() {
        let store = MemoryVectors::new(400, 4000);
        let odd = store.insert(&of("a"), vec![entry("x", &[1.0], "a"), entry("y", &[1.0, 2.0], "a")]);
        assert!(matches!(odd, Err(CapabilityError::Invalid(_))), "{odd:?}");
        let big: Vec<_> = (0..4).map(|n| entry(&n.to_string(), &[1.0], "a")).collect();
        assert!(matches!(store.insert(&of("a"), big), Err(CapabilityError::Denied(_))));
        assert!(store.find(&of("a"), &[1.0], 9, &[]).is_empty());
        for _ in 0..9 {
            store.insert(&of("a"), vec![entry("x", &[1.0], "a")]).unwrap();
        }
    }

    #[test]
    fn all_owners_together_have_a_limit_and_what_is_removed_counts_no_more() {
        let store = MemoryVectors::new(400, 600);
        let put = |tenant: &str, id: &str| store.insert(&of(tenant), vec![entry(id, &[1.0], "a")]);
        for (tenant, id) in [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")] {
            put(tenant, id).unwrap();
            put(tenant, id).unwrap();
        }
        let full = put("c", "1").unwrap_err();
        let why = "the 600 bytes of all vectors (`plugins.vectors_mib`) are used up";
        assert_eq!(full, CapabilityError::Denied(why.into()));
        let own = put("a", "3").unwrap_err();
        let why = "the 400 bytes of vectors of a project, or tenant (`plugins.owner_vectors_mib`), are used up";
        assert_eq!(own, CapabilityError::Denied(why.into()));
        assert_eq!(store.remove(&of("a"), &["1".into(), "1".into()]), 1);
        put("c", "1").unwrap();
        assert_eq!(store.collections.read().bytes, 4 * entry_bytes());
    }

    fn entry_bytes() -> usize {
        OVERHEAD + "1".len() + "kind".len() + "a".len() + size_of::<f32>()
    }
}
