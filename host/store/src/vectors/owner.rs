//! What is counted of each owner, in the row that whoever changes its entries holds.

use crate::conversations::Tx;
use crate::db::Db;
use crate::error::StoreError;
use crate::keeping::{now_ms, sum};
use crate::usage::{signed, unsigned};
use sqlx::Row;
use sqlx::any::AnyRow;

/// The bytes of all owners.
pub(super) const SUM: &str = sum!("plugin_vector_owners");

/// SQLite's transaction holds all there is.
const READ: &str = "SELECT changed, forgotten, bytes, deleted_bytes FROM plugin_vector_owners WHERE owner = $1";

/// An owner's row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    /// The number of its last change.
    pub(super) changed: i64,
    /// That of the last one of those that were forgotten with what they deleted: who has followed it to there has missed none.
    pub(super) forgotten: i64,
    /// Of what is there.
    pub(super) bytes: u64,
    /// Of what was deleted and is not forgotten, which count for nobody.
    pub(super) deleted_bytes: u64,
}

impl Owner {
    /// After another change, of which these bytes come and those go, of what is there and of what was deleted.
    pub(super) fn changed(self, came: Bytes, went: Bytes) -> Self {
        let bytes = (self.bytes + came.there).saturating_sub(went.there);
        let deleted_bytes = (self.deleted_bytes + came.deleted).saturating_sub(went.deleted);
        Self { changed: self.changed + 1, bytes, deleted_bytes, ..self }
    }
}

/// Of some entries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bytes {
    pub(super) there: u64,
    pub(super) deleted: u64,
}

/// Without holding it.
pub(super) async fn read(db: &Db, owner: &str) -> Result<Option<Owner>, StoreError> {
    sqlx::query(READ).bind(owner).fetch_optional(db.pool()).await?.map(of_row).transpose()
}

/// Holds an owner, which is of this share, until the transaction ends.
pub(super) async fn hold(db: &Db, tx: &mut Tx, owner: &str, share: &str) -> Result<Owner, StoreError> {
    const POSTGRES: &str =
        "SELECT changed, forgotten, bytes, deleted_bytes FROM plugin_vector_owners WHERE owner = $1 FOR UPDATE";
    // Who else makes it is waited for; who removed it meanwhile makes this insert it. Numbers begin at the time: an owner who was
    // removed has had none as high, so whoever followed that one begins anew.
    const MAKE: &str = "INSERT INTO plugin_vector_owners (owner, changed, forgotten, bytes, deleted_bytes, share) \
         VALUES ($1, $2, $2, 0, 0, $3) ON CONFLICT (owner) DO UPDATE SET bytes = plugin_vector_owners.bytes \
         RETURNING changed, forgotten, bytes, deleted_bytes";
    let row = sqlx::query(db.either(READ, POSTGRES)).bind(owner).fetch_optional(&mut **tx).await?;
    match row {
        Some(row) => of_row(row),
        None => of_row(sqlx::query(MAKE).bind(owner).bind(now_ms()).bind(share).fetch_one(&mut **tx).await?),
    }
}

/// The same of an owner that is there and that nobody else holds, or `None`.
pub(super) async fn hold_if_free(db: &Db, tx: &mut Tx, owner: &str) -> Result<Option<Owner>, StoreError> {
    const POSTGRES: &str = "SELECT changed, forgotten, bytes, deleted_bytes FROM plugin_vector_owners \
         WHERE owner = $1 FOR UPDATE SKIP LOCKED";
    sqlx::query(db.either(READ, POSTGRES)).bind(owner).fetch_optional(&mut **tx).await?.map(of_row).transpose()
}

/// Says what an owner that is held is from now on, and whose share that counts for where it is known. It stays when it has
/// nothing: numbers that copies have followed are not given again.
pub(super) async fn write(tx: &mut Tx, owner: &str, row: Owner, share: Option<&str>) -> Result<(), StoreError> {
    const WRITE: &str = "UPDATE plugin_vector_owners SET changed = $2, forgotten = $3, bytes = $4, deleted_bytes = $5, \
         share = COALESCE($6, share) WHERE owner = $1";
    let query = sqlx::query(WRITE).bind(owner).bind(row.changed).bind(row.forgotten);
    query.bind(signed(row.bytes)).bind(signed(row.deleted_bytes)).bind(share).execute(&mut **tx).await?;
    Ok(())
}

/// Removes an owner that is held and that nobody will be again.
pub(super) async fn remove(tx: &mut Tx, owner: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM plugin_vector_owners WHERE owner = $1").bind(owner).execute(&mut **tx).await?;
    Ok(())
}

fn of_row(row: AnyRow) -> Result<Owner, StoreError> {
    let [changed, forgotten, bytes, deleted_bytes] =
        [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get::<i64, _>(3)?];
    Ok(Owner { changed, forgotten, bytes: unsigned(bytes), deleted_bytes: unsigned(deleted_bytes) })
}
