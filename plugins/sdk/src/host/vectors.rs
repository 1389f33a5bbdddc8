//! Nearest neighbours in collections of the project, or tenant: in the memory of the server, gone when it stops, and each
//! gateway's own; or in its store, where the operator says so. Needs [`crate::Capability::Vectors`].

use crate::plugin::Error;
use crate::types::Attrs;

#[cfg(target_arch = "wasm32")]
use crate::wasm::bindings::vectors::tidegate::plugin::vectors as imp;

#[cfg(not(target_arch = "wasm32"))]
use super::fake::vectors as fake;

/// An entry; one of the same id is replaced.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Unique within the collection.
    pub id: String,
    /// Finite numbers, not all 0.
    pub vector: Vec<f32>,
    /// Key and JSON value.
    pub payload: Attrs,
}

/// An entry that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// The entry's.
    pub id: String,
    /// Cosine, from -1 to 1.
    pub score: f32,
    /// The entry's.
    pub payload: Attrs,
}

/// The nearest entries that have every pair of `filter` in their payload, nearest first.
///
/// # Errors
/// What the host says: no grant, or a vector that is none.
pub fn search(collection: &str, vector: &[f32], top_k: u32, filter: &Attrs) -> Result<Vec<Hit>, Error> {
    #[cfg(target_arch = "wasm32")]
    {
        let hit = |hit: imp::Hit| Hit { id: hit.id, score: hit.score, payload: hit.payload };
        Ok(imp::search(collection, vector, top_k, filter)?.into_iter().map(hit).collect())
    }
    #[cfg(not(target_arch = "wasm32"))]
    fake::search(collection, vector, top_k, filter)
}

/// Puts entries, all or none.
///
/// # Errors
/// What the host says: no grant to write, other dimensions than the collection has, or no room.
pub fn put(collection: &str, entries: &[Entry]) -> Result<(), Error> {
    #[cfg(target_arch = "wasm32")]
    {
        let entry = |e: &Entry| imp::Entry { id: e.id.clone(), vector: e.vector.clone(), payload: e.payload.clone() };
        let entries: Vec<imp::Entry> = entries.iter().map(entry).collect();
        Ok(imp::put(collection, &entries)?)
    }
    #[cfg(not(target_arch = "wasm32"))]
    fake::put(collection, entries)
}

/// Removes entries; answers how many were there.
///
/// # Errors
/// What the host says: no grant to write.
pub fn delete(collection: &str, ids: &[String]) -> Result<u32, Error> {
    #[cfg(target_arch = "wasm32")]
    return Ok(imp::delete(collection, ids)?);
    #[cfg(not(target_arch = "wasm32"))]
    fake::delete(collection, ids)
}
