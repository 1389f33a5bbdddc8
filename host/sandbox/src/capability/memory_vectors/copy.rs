//! A store that is a copy of another one, which lasts and has the quotas: what it says has changed is changed here, in its
//! order, and is searched here.

use super::{Collection, MemoryVectors, OVERHEAD, VectorEntry, kept, payload_bytes};

/// What became of an entry of an owner's collection.
#[derive(Clone, Debug, PartialEq)]
pub enum VectorChange {
    /// It was put there, or put in the place of another.
    Put(VectorEntry),
    /// It is not there any more, by id.
    Deleted(String),
}

impl MemoryVectors {
    /// A copy, bounded by what it is a copy of.
    pub fn copy() -> Self {
        Self::new(usize::MAX, usize::MAX)
    }

    /// Bytes that an entry counts as.
    pub fn cost(entry: &VectorEntry) -> usize {
        OVERHEAD + entry.id.len() + payload_bytes(&entry.payload) + size_of_val(entry.vector.as_slice())
    }

    /// Changes a collection. Vectors of other dimensions than the collection's are taken: by the end of all changes those are gone.
    pub fn follow(&self, collection: &Collection, change: VectorChange) {
        match change {
            VectorChange::Put(entry) => self.replace(collection, entry),
            VectorChange::Deleted(id) => _ = self.remove(collection, &[id]),
        }
    }

    fn replace(&self, collection: &Collection, entry: VectorEntry) {
        let (id, entry) = kept(entry);
        let added = entry.bytes(&id);
        let mut all = self.collections.write();
        let replaced = all.entries.entry(collection.clone()).or_default().insert(id.clone(), entry);
        let removed = replaced.map_or(0, |replaced| replaced.bytes(&id));
        all.resize(collection, added, removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::VectorStore;
    use tidegate_types::TenantId;

    fn entry(id: &str, vector: &[f32]) -> VectorChange {
        VectorChange::Put(VectorEntry { id: id.into(), vector: vector.into(), payload: Vec::new() })
    }

    async fn found(store: &MemoryVectors, collection: &Collection, dimensions: usize) -> Vec<String> {
        let hits = store.search(collection, vec![1.0; dimensions], 9, Vec::new()).await.unwrap();
        hits.into_iter().map(|hit| hit.id).collect()
    }

    #[tokio::test]
    async fn what_has_changed_is_found() {
        let (store, own) = (MemoryVectors::copy(), Collection::of_tenant("c", TenantId::new("t")));
        for change in [entry("1", &[1.0]), entry("2", &[1.0]), entry("1", &[-1.0])] {
            store.follow(&own, change);
        }
        assert_eq!(found(&store, &own, 1).await, ["2", "1"]);
        for id in ["2", "1"] {
            store.follow(&own, VectorChange::Deleted(id.into()));
        }
        assert!(found(&store, &own, 1).await.is_empty());
        assert_eq!(store.collections.read().held.held(), 0);
    }

    #[tokio::test]
    async fn a_collection_may_become_one_of_other_dimensions() {
        let (store, own) = (MemoryVectors::copy(), Collection::of_tenant("c", TenantId::new("t")));
        // The first was deleted and put again after the second: what is told of it comes after that one.
        for (id, vector) in [("1", &[1.0][..]), ("2", &[1.0, 0.0]), ("1", &[1.0, 1.0])] {
            store.follow(&own, entry(id, vector));
        }
        assert_eq!(found(&store, &own, 2).await, ["1", "2"]);
        assert!(found(&store, &own, 1).await.is_empty());
    }

    #[test]
    fn an_entry_costs_what_it_takes() {
        let entry = VectorEntry { id: "id".into(), vector: vec![1.0; 3], payload: vec![("k".into(), "v".into())] };
        let (id, in_memory) = kept(entry.clone());
        assert_eq!(MemoryVectors::cost(&entry), in_memory.bytes(&id));
    }
}
