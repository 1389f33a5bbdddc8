//! The bytes of each space, which its row counts.

use super::Space;
use crate::conversations::Tx;
use crate::db::Db;
use crate::error::StoreError;
use crate::keeping::sum;
use crate::usage::{signed, unsigned};
use sqlx::Row;

/// Of all of them.
pub(super) const SUM: &str = sum!("plugin_spaces");

/// SQLite's transaction holds all there is.
const SQLITE: &str = "SELECT bytes FROM plugin_spaces WHERE owner = $1 AND plugin = $2";

/// Holds a space, which is of this share, until the transaction ends; gives its bytes. What is read of it afterwards is what who held it before left.
pub(super) async fn hold(db: &Db, tx: &mut Tx, space: Space<'_>, share: &str) -> Result<u64, StoreError> {
    const POSTGRES: &str = "SELECT bytes FROM plugin_spaces WHERE owner = $1 AND plugin = $2 FOR UPDATE";
    // Who else makes it is waited for; who removed it meanwhile makes this insert it.
    const MAKE: &str = "INSERT INTO plugin_spaces (owner, plugin, bytes, share) VALUES ($1, $2, 0, $3) \
         ON CONFLICT (owner, plugin) DO UPDATE SET bytes = plugin_spaces.bytes RETURNING bytes";
    let bound = |statement| sqlx::query(statement).bind(space.owner).bind(space.plugin);
    let row = match bound(db.either(SQLITE, POSTGRES)).fetch_optional(&mut **tx).await? {
        Some(row) => row,
        None => bound(MAKE).bind(share).fetch_one(&mut **tx).await?,
    };
    Ok(unsigned(row.try_get(0)?))
}

/// The same of a space that is there and that nobody else holds, or `None`.
pub(super) async fn hold_if_free(db: &Db, tx: &mut Tx, space: Space<'_>) -> Result<Option<u64>, StoreError> {
    const POSTGRES: &str = "SELECT bytes FROM plugin_spaces WHERE owner = $1 AND plugin = $2 FOR UPDATE SKIP LOCKED";
    let query = sqlx::query(db.either(SQLITE, POSTGRES)).bind(space.owner).bind(space.plugin);
    let row = query.fetch_optional(&mut **tx).await?;
    row.map(|row| Ok(unsigned(row.try_get(0)?))).transpose()
}

/// Says how many bytes a space that is held has from now on, and whose share they count for where that is known; one without
/// any is no more.
pub(super) async fn resize(tx: &mut Tx, space: Space<'_>, bytes: u64, share: Option<&str>) -> Result<(), StoreError> {
    const RESIZE: &str =
        "UPDATE plugin_spaces SET bytes = $3, share = COALESCE($4, share) WHERE owner = $1 AND plugin = $2";
    const REMOVE: &str = "DELETE FROM plugin_spaces WHERE owner = $1 AND plugin = $2";
    let bound = |statement| sqlx::query(statement).bind(space.owner).bind(space.plugin);
    let query = if bytes == 0 { bound(REMOVE) } else { bound(RESIZE).bind(signed(bytes)).bind(share) };
    query.execute(&mut **tx).await?;
    Ok(())
}
