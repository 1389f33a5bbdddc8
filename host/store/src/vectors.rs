//! What plugins keep in `vectors`, where the operator keeps it here: what it is and how it changes. Nothing is searched here:
//! gateways have copies, which follow the changes (`vectors/changes.rs`). `vectors/owner.rs` has what is counted of each owner,
//! `vectors/sweeping.rs` removes what nobody needs any more.
//!
//! Invariants:
//! - each statement names the owner;
//! - the bytes of an owner are those of its entries, and each change of them has a number above all before it: who changes
//!   them holds the owner's row;
//! - nobody holds two owners, so nobody waits in a circle;
//! - what a caller no longer waits for when it comes to hold its owner changes nothing: it would undo what came after it.

mod changes;
mod owner;
mod sweeping;

use crate::conversations::Tx;
use crate::db::Db;
use crate::error::StoreError;
use crate::keeping::{Done, KeepError, Keeper, Room, now_ms};
use crate::usage::{signed, unsigned};
pub use changes::{Changes, Cursor, VectorChange};
use owner::{Bytes, Owner};
use sqlx::{AssertSqlSafe, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What an entry that was deleted takes beside its id, until it is forgotten.
const DELETED_BYTES: u64 = 128;

/// Of one owner: past that the older half of what was deleted is forgotten before more is. That is some thirty thousand entries, so
/// that copies which are brought up now and then miss none.
const MOST_DELETED_BYTES: u64 = 4 << 20;

/// Entries that one statement puts.
const PUT: usize = 16;

/// Ids that one statement looks for.
const IDS: usize = 64;

/// An entry.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptVector {
    /// Unique within its collection.
    pub id: String,
    /// As it was put.
    pub vector: Vec<f32>,
    /// Key and JSON value.
    pub payload: Vec<(String, String)>,
    /// The bytes that it counts as.
    pub cost: u64,
}

/// The vectors of all owners. Clones are the same ones.
#[derive(Clone, Debug)]
pub struct Vectors {
    keeper: Keeper,
}

impl Vectors {
    /// Of `db`, with `cap` bytes over all owners, and at most twice as many where some have less than their share of it.
    pub fn new(db: &Db, cap: u64) -> Self {
        Self { keeper: Keeper::new(db, cap, owner::SUM) }
    }

    /// The same for a call of one who waits for as long as `caller` is there. One that comes to hold its owner later is
    /// [`KeepError::GivenUp`].
    pub fn of_caller(&self, caller: &Arc<()>) -> Self {
        Self { keeper: self.keeper.of_caller(caller) }
    }

    /// The same for a call of an owner whose bytes count for a tenant's share, and not for one of its own.
    pub fn of_share(&self, tenant: &str) -> Self {
        Self { keeper: self.keeper.of_share(tenant) }
    }

    /// Puts all entries, or none; of those with one id the last. `quota` bounds the bytes of all that the owner keeps.
    pub async fn put(&self, of: Collection<'_>, entries: Vec<KeptVector>, quota: u64) -> Result<(), KeepError> {
        let Some(dimensions) = entries.first().map(|entry| entry.vector.len()) else { return Ok(()) };
        let entries: BTreeMap<String, KeptVector> =
            entries.into_iter().map(|entry| (entry.id.clone(), entry)).collect();
        let put = Put { of, dimensions, entries: entries.into_values().collect(), quota };
        let mut tx = self.keeper.db.write().await?;
        let done = self.put_in(&mut tx, &put).await;
        self.keeper.end(tx, done).await
    }

    async fn put_in(&self, tx: &mut Tx, put: &Put<'_>) -> Result<Done<()>, KeepError> {
        let before = self.hold(tx, put.of.owner).await?;
        put.check_dimensions(tx).await?;
        let replaced = put.replaced(tx).await?;
        let added = Bytes { there: put.entries.iter().map(|entry| entry.cost).sum(), deleted: 0 };
        let after = before.changed(added, replaced);
        let room = Room { before: before.bytes, after: after.bytes, quota: put.quota, past_cap: true };
        self.keeper.check(tx, put.of.owner, room).await?;
        for entries in put.entries.chunks(PUT) {
            put.write(tx, entries, after.changed).await?;
        }
        owner::write(tx, put.of.owner, after, self.keeper.known_share()).await?;
        Ok(Done { answer: (), before: before.bytes, after: after.bytes, leaves_words: replaced.there > 0 })
    }

    /// Removes entries; gives how many were there.
    pub async fn delete(&self, of: Collection<'_>, ids: &[String]) -> Result<u64, KeepError> {
        // What is not there makes no owner, and waits for nobody who writes.
        let Some(owner) = owner::read(&self.keeper.db, of.owner).await? else { return Ok(0) };
        if owner.deleted_bytes > MOST_DELETED_BYTES {
            self.forget_oldest(of.owner, MOST_DELETED_BYTES / 2).await?;
        }
        let ids: Vec<&[u8]> = ids.iter().map(|id| id.as_bytes()).collect::<BTreeSet<_>>().into_iter().collect();
        let mut tx = self.keeper.db.write().await?;
        let done = self.delete_in(&mut tx, of, &ids).await;
        self.keeper.end(tx, done).await
    }

    async fn delete_in(&self, tx: &mut Tx, of: Collection<'_>, ids: &[&[u8]]) -> Result<Done<u64>, KeepError> {
        let before = self.hold(tx, of.owner).await?;
        let (changed, mut deleted, mut came, mut went) = (before.changed + 1, 0, Bytes::default(), Bytes::default());
        for ids in ids.chunks(IDS) {
            let there = there(tx, of, ids).await?;
            if there.count == 0 {
                continue;
            }
            mark_deleted(tx, of, ids, changed).await?;
            deleted += there.count;
            went.there += there.cost;
            came.deleted += there.count * DELETED_BYTES + there.id_bytes;
        }
        let after = before.changed(came, went);
        if deleted > 0 {
            owner::write(tx, of.owner, after, self.keeper.known_share()).await?;
        }
        Ok(Done { answer: deleted, before: before.bytes, after: after.bytes, leaves_words: deleted > 0 })
    }

    /// Holds an owner until the transaction ends, for one who still waits.
    async fn hold(&self, tx: &mut Tx, owner: &str) -> Result<Owner, KeepError> {
        let held = owner::hold(&self.keeper.db, tx, owner, self.keeper.share(owner)).await?;
        self.keeper.caller.check().map(|()| held)
    }
}

/// A collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection<'a> {
    /// A project's id, or a tenant.
    pub owner: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// Entries are to be put.
struct Put<'a> {
    of: Collection<'a>,
    dimensions: usize,
    /// By id, each once.
    entries: Vec<KeptVector>,
    quota: u64,
}

impl Put<'_> {
    /// A collection has those of the first vector that was put there.
    async fn check_dimensions(&self, tx: &mut Tx) -> Result<(), KeepError> {
        const FIRST: &str = "SELECT CAST(LENGTH(vector) AS BIGINT) FROM plugin_vectors \
             WHERE owner = $1 AND collection = $2 AND deleted_ms IS NULL LIMIT 1";
        let query = sqlx::query(FIRST).bind(self.of.owner).bind(self.of.name);
        let row = query.fetch_optional(&mut **tx).await?;
        let bytes = row.map(|row| row.try_get::<i64, _>(0)).transpose()?;
        let wanted = bytes.map_or(self.dimensions, |bytes| unsigned(bytes) as usize / size_of::<f32>());
        match self.entries.iter().map(|entry| entry.vector.len()).find(|dimensions| *dimensions != wanted) {
            Some(odd) => Err(KeepError::Dimensions(odd)),
            None => Ok(()),
        }
    }

    /// The bytes of what it takes the place of.
    async fn replaced(&self, tx: &mut Tx) -> Result<Bytes, StoreError> {
        let mut bytes = Bytes::default();
        for entries in self.entries.chunks(IDS) {
            let ids: Vec<&[u8]> = entries.iter().map(|entry| entry.id.as_bytes()).collect();
            let query = format!(
                "SELECT CAST(COALESCE(SUM(CASE WHEN deleted_ms IS NULL THEN cost END), 0) AS BIGINT), \
                 CAST(COALESCE(SUM(CASE WHEN deleted_ms IS NOT NULL THEN cost END), 0) AS BIGINT) FROM plugin_vectors \
                 WHERE owner = $1 AND collection = $2 AND id IN ({})",
                places(3, &ids)
            );
            let query = sqlx::query(AssertSqlSafe(query)).bind(self.of.owner).bind(self.of.name);
            let row = ids.iter().fold(query, |query, id| query.bind(*id)).fetch_one(&mut **tx).await?;
            bytes.there += unsigned(row.try_get(0)?);
            bytes.deleted += unsigned(row.try_get(1)?);
        }
        Ok(bytes)
    }

    async fn write(&self, tx: &mut Tx, entries: &[KeptVector], changed: i64) -> Result<(), StoreError> {
        let row = |at: usize| format!("($1, $2, ${at}, ${}, ${}, ${}, $3, NULL)", at + 1, at + 2, at + 3);
        let rows: Vec<String> = (0..entries.len()).map(|n| row(4 + 4 * n)).collect();
        let statement = format!(
            "INSERT INTO plugin_vectors (owner, collection, id, vector, payload, cost, changed, deleted_ms) VALUES {} \
             ON CONFLICT (owner, collection, id) DO UPDATE SET vector = excluded.vector, payload = excluded.payload, \
             cost = excluded.cost, changed = excluded.changed, deleted_ms = NULL",
            rows.join(", ")
        );
        let mut query = sqlx::query(AssertSqlSafe(statement)).bind(self.of.owner).bind(self.of.name).bind(changed);
        for KeptVector { id, vector, payload, cost } in entries {
            let vector: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            let payload = serde_json::to_string(payload).map_err(StoreError::Body)?;
            query = query.bind(id.as_bytes()).bind(vector).bind(payload).bind(signed(*cost));
        }
        query.execute(&mut **tx).await?;
        Ok(())
    }
}

/// What is there of some ids.
struct There {
    count: u64,
    cost: u64,
    id_bytes: u64,
}

async fn there(tx: &mut Tx, of: Collection<'_>, ids: &[&[u8]]) -> Result<There, StoreError> {
    let statement = format!(
        "SELECT COUNT(*), CAST(COALESCE(SUM(cost), 0) AS BIGINT), CAST(COALESCE(SUM(LENGTH(id)), 0) AS BIGINT) \
         FROM plugin_vectors WHERE owner = $1 AND collection = $2 AND deleted_ms IS NULL AND id IN ({})",
        places(3, ids)
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(of.owner).bind(of.name);
    let row = ids.iter().fold(query, |query, id| query.bind(*id)).fetch_one(&mut **tx).await?;
    let [count, cost, id_bytes] = [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?].map(unsigned);
    Ok(There { count, cost, id_bytes })
}

async fn mark_deleted(tx: &mut Tx, of: Collection<'_>, ids: &[&[u8]], changed: i64) -> Result<(), StoreError> {
    let statement = format!(
        "UPDATE plugin_vectors SET vector = NULL, payload = NULL, cost = CAST($3 AS BIGINT) + LENGTH(id), changed = $4, \
         deleted_ms = $5 WHERE owner = $1 AND collection = $2 AND deleted_ms IS NULL AND id IN ({})",
        places(6, ids)
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(of.owner).bind(of.name);
    let query = query.bind(signed(DELETED_BYTES)).bind(changed).bind(now_ms());
    ids.iter().fold(query, |query, id| query.bind(*id)).execute(&mut **tx).await?;
    Ok(())
}

/// A place in a statement for each id, from a number on.
fn places(from: usize, ids: &[&[u8]]) -> String {
    let places: Vec<String> = (from..from + ids.len()).map(|n| format!("${n}")).collect();
    places.join(", ")
}
