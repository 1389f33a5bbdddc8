//! `vectors`: nearest neighbours in the collections of a project, or tenant. This file bounds what a guest may ask; the supplier keeps
//! the entries and the quota. [`super::MemoryVectors`] is the built-in one.

use super::{BoxFuture, CapabilityError, Namespace};
use crate::bindings::tidegate::plugin::vectors as wit;
use crate::stage::VectorAccess;
use crate::state::HostState;
use std::sync::Arc;
use tidegate_types::TenantId;

const MAX_TOP_K: u32 = 1000;
const MAX_ENTRIES: usize = 256;
const MAX_DELETED: usize = 1024;
const MAX_ID_BYTES: usize = 512;
const MAX_DIMENSIONS: usize = 4096;
const MAX_PAYLOAD_BYTES: usize = 64 << 10;
/// Of a payload: many empty ones have no bytes, and are looked at all the same.
const MAX_PAYLOAD_PAIRS: usize = 4096;
/// Each is looked for in the payload of each entry.
const MAX_FILTER_PAIRS: usize = 64;
/// Bytes of all that a search brings back.
pub(super) const MAX_FOUND_BYTES: usize = 8 << 20;

/// Whose entries: a guest names the collection, never the owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collection {
    /// The owner of the request: its tenant, or the project of it that it is of.
    pub owner: TenantId,
    /// Whose share of turns and of bytes it takes: the tenant, which may have many projects.
    pub share: TenantId,
    /// A name from the grant.
    pub name: Arc<str>,
}

impl Collection {
    /// One of a tenant that is in none of its projects.
    pub fn of_tenant(name: impl Into<Arc<str>>, tenant: TenantId) -> Self {
        Self { share: tenant.clone(), owner: tenant, name: name.into() }
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorEntry {
    /// Unique within the collection.
    pub id: String,
    /// Finite, not all 0.
    pub vector: Vec<f32>,
    /// Key and JSON value.
    pub payload: Vec<(String, String)>,
}

impl VectorEntry {
    /// Refuses what no plugin may put.
    pub fn check(&self) -> Result<(), CapabilityError> {
        let bytes: usize = self.payload.iter().map(|(key, value)| key.len() + value.len()).sum();
        let pairs = self.payload.len();
        if !(1..=MAX_ID_BYTES).contains(&self.id.len()) || bytes > MAX_PAYLOAD_BYTES || pairs > MAX_PAYLOAD_PAIRS {
            let message = format!(
                "an id has 1 to {MAX_ID_BYTES} bytes, a payload at most {MAX_PAYLOAD_BYTES} in {MAX_PAYLOAD_PAIRS} pairs"
            );
            return Err(CapabilityError::Invalid(message));
        }
        check_vector(&self.vector)
    }
}

/// An entry that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorHit {
    /// The entry's.
    pub id: String,
    /// Cosine of the angle to what was asked for.
    pub score: f32,
    /// The entry's.
    pub payload: Vec<(String, String)>,
}

/// Why a supplier refuses. A plugin reads the same words whoever keeps its vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorRefusal {
    /// What the owner keeps would have more than these bytes.
    Quota(u64),
    /// All collections together would have more than these bytes, and those of this one's tenant more than its share.
    Cap(u64),
    /// So many dimensions, which are not those of the collection.
    Dimensions(usize),
}

impl From<VectorRefusal> for CapabilityError {
    fn from(refusal: VectorRefusal) -> Self {
        match refusal {
            VectorRefusal::Quota(bytes) => Self::Denied(format!(
                "the {bytes} bytes of vectors of a project, or tenant (`plugins.owner_vectors_mib`), are used up"
            )),
            VectorRefusal::Cap(bytes) => {
                let what = "of all vectors (`plugins.vectors_mib`)";
                Self::Denied(format!("the {bytes} bytes {what} are used up, and its tenant has its share of them"))
            }
            VectorRefusal::Dimensions(odd) => {
                Self::Invalid(format!("a vector of {odd} dimensions; the collection's have others"))
            }
        }
    }
}

/// A supplier of vector collections. One that is full says [`CapabilityError::Denied`].
pub trait VectorStore: Send + Sync {
    /// Whether its answers may be long in coming, as a database's: who waits for one takes no place of those that compute.
    fn waits(&self) -> bool {
        false
    }

    /// Waits until a search would find all that was put into the owner's collections before this was called. Apart from the search
    /// itself, which is work.
    fn ready<'a>(&'a self, _: &'a Collection) -> BoxFuture<'a, Result<(), CapabilityError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// At most `top_k` entries that have every pair of `filter`, nearest first; equal ones by id. The built-in supplier says
    /// [`CapabilityError::Invalid`] where they are more than 8 MiB, before so many are copied.
    fn search<'a>(
        &'a self,
        collection: &'a Collection,
        vector: Vec<f32>,
        top_k: usize,
        filter: Vec<(String, String)>,
    ) -> BoxFuture<'a, Result<Vec<VectorHit>, CapabilityError>>;

    /// Puts all entries, or none.
    fn put<'a>(
        &'a self,
        collection: &'a Collection,
        entries: Vec<VectorEntry>,
    ) -> BoxFuture<'a, Result<(), CapabilityError>>;

    /// Removes entries; answers how many were there.
    fn delete<'a>(
        &'a self,
        collection: &'a Collection,
        ids: Vec<String>,
    ) -> BoxFuture<'a, Result<u32, CapabilityError>>;
}

impl wit::Host for HostState {
    async fn search(
        &mut self,
        collection: String,
        vector: Vec<f32>,
        top_k: u32,
        filter: Vec<(String, String)>,
    ) -> wasmtime::Result<Result<Vec<wit::Hit>, wit::Error>> {
        let asked = async {
            let collection = self.collection("vectors.search", &collection, VectorAccess::Read)?;
            check_search(&vector, &filter)?;
            self.meter.waiting(self.blueprint.vectors.ready(&collection)).await.map(|()| collection)
        };
        let found = match asked.await {
            Ok(collection) => {
                let top_k = top_k.min(MAX_TOP_K) as usize;
                self.meter.working(self.blueprint.vectors.search(&collection, vector, top_k, filter)).await?
            }
            Err(error) => Err(error),
        };
        let hit = |hit: VectorHit| wit::Hit { id: hit.id, score: hit.score, payload: hit.payload };
        Ok(found.map(|hits| hits.into_iter().map(hit).collect()).map_err(Into::into))
    }

    async fn put(&mut self, collection: String, entries: Vec<wit::Entry>) -> wasmtime::Result<Result<(), wit::Error>> {
        let done = async {
            let collection = self.collection("vectors.put", &collection, VectorAccess::Write)?;
            self.may_keep()?;
            let entries = check_entries(entries)?;
            self.meter.waiting(self.blueprint.vectors.put(&collection, entries)).await
        };
        Ok(done.await.map_err(Into::into))
    }

    async fn delete(&mut self, collection: String, ids: Vec<String>) -> wasmtime::Result<Result<u32, wit::Error>> {
        let done = async {
            let collection = self.collection("vectors.delete", &collection, VectorAccess::Write)?;
            check_deleted(&ids)?;
            self.meter.waiting(self.blueprint.vectors.delete(&collection, ids)).await
        };
        Ok(done.await.map_err(Into::into))
    }
}

impl HostState {
    fn collection(
        &mut self,
        function: &'static str,
        name: &str,
        wanted: VectorAccess,
    ) -> Result<Collection, CapabilityError> {
        self.allow("vectors", function)?;
        match self.blueprint.grants.vectors.get(name) {
            Some(granted) if wanted == VectorAccess::Read || *granted == VectorAccess::Write => {
                let Namespace { owner, share, .. } = self.namespace.clone();
                Ok(Collection { owner, share, name: name.into() })
            }
            _ => {
                let message = format!("`{function}` on the collection `{}` is not granted here", name.escape_debug());
                Err(CapabilityError::Denied(message))
            }
        }
    }
}

fn check_entries(entries: Vec<wit::Entry>) -> Result<Vec<VectorEntry>, CapabilityError> {
    if entries.len() > MAX_ENTRIES {
        return Err(CapabilityError::Invalid(format!("{} entries at once; at most {MAX_ENTRIES}", entries.len())));
    }
    let check = |entry: wit::Entry| {
        let wit::Entry { id, vector, payload } = entry;
        let entry = VectorEntry { id, vector, payload };
        entry.check().map(|()| entry)
    };
    entries.into_iter().map(check).collect()
}

fn check_deleted(ids: &[String]) -> Result<(), CapabilityError> {
    if ids.len() > MAX_DELETED {
        return Err(CapabilityError::Invalid(format!("{} ids at once; at most {MAX_DELETED}", ids.len())));
    }
    Ok(())
}

fn check_search(vector: &[f32], filter: &[(String, String)]) -> Result<(), CapabilityError> {
    if filter.len() > MAX_FILTER_PAIRS {
        let message = format!("a filter of {} pairs; at most {MAX_FILTER_PAIRS}", filter.len());
        return Err(CapabilityError::Invalid(message));
    }
    check_vector(vector)
}

fn check_vector(vector: &[f32]) -> Result<(), CapabilityError> {
    let good = !vector.is_empty()
        && vector.len() <= MAX_DIMENSIONS
        && vector.iter().all(|x| x.is_finite())
        && vector.iter().any(|x| *x != 0.0);
    if good {
        return Ok(());
    }
    let message = format!("a vector has 1 to {MAX_DIMENSIONS} finite numbers, not all of them 0");
    Err(CapabilityError::Invalid(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_so_many_pairs_at_most() {
        let filter = |pairs: usize| vec![(String::new(), String::new()); pairs];
        check_search(&[1.0], &filter(MAX_FILTER_PAIRS)).unwrap();
        let refused = check_search(&[1.0], &filter(MAX_FILTER_PAIRS + 1)).unwrap_err();
        assert_eq!(refused, CapabilityError::Invalid("a filter of 65 pairs; at most 64".into()));
        assert!(check_search(&[0.0], &[]).is_err());
    }

    #[test]
    fn so_many_are_put_at_once_at_most() {
        let entry = |at: usize| wit::Entry { id: at.to_string(), vector: vec![1.0], payload: Vec::new() };
        let put = |entries: usize| check_entries((0..entries).map(entry).collect()).map(|entries| entries.len());
        assert_eq!(put(MAX_ENTRIES), Ok(256));
        let refused = put(MAX_ENTRIES + 1).unwrap_err();
        assert_eq!(refused, CapabilityError::Invalid("257 entries at once; at most 256".into()));
    }

    #[test]
    fn so_many_are_deleted_at_once_at_most() {
        let delete = |ids: usize| check_deleted(&vec![String::new(); ids]);
        delete(MAX_DELETED).unwrap();
        let refused = delete(MAX_DELETED + 1).unwrap_err();
        assert_eq!(refused, CapabilityError::Invalid("1025 ids at once; at most 1024".into()));
    }

    #[test]
    fn a_payload_has_so_many_pairs_at_most() {
        let put = |pairs: usize| {
            let payload = vec![(String::new(), String::new()); pairs];
            check_entries(vec![wit::Entry { id: "a".into(), vector: vec![1.0], payload }])
        };
        put(MAX_PAYLOAD_PAIRS).unwrap();
        let refused = put(MAX_PAYLOAD_PAIRS + 1).unwrap_err();
        let why = "an id has 1 to 512 bytes, a payload at most 65536 in 4096 pairs";
        assert_eq!(refused, CapabilityError::Invalid(why.into()));
    }
}
