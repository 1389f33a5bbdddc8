//! The bytes of spaces: of each, which its row counts, and of all together.

use super::{KvError, Space};
use crate::conversations::Tx;
use crate::db::Db;
use crate::error::StoreError;
use crate::usage::{signed, unsigned};
use sqlx::Row;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// SQLite's transaction holds all there is.
const SQLITE: &str = "SELECT bytes FROM plugin_spaces WHERE owner = $1 AND plugin = $2";

/// Holds a space until the transaction ends; gives its bytes. What is read of it afterwards is what who held it before left.
pub(super) async fn hold(db: &Db, tx: &mut Tx, space: Space<'_>) -> Result<u64, StoreError> {
    const POSTGRES: &str = "SELECT bytes FROM plugin_spaces WHERE owner = $1 AND plugin = $2 FOR UPDATE";
    // Who else makes it is waited for; who removed it meanwhile makes this insert it.
    const MAKE: &str = "INSERT INTO plugin_spaces (owner, plugin, bytes) VALUES ($1, $2, 0) \
         ON CONFLICT (owner, plugin) DO UPDATE SET bytes = plugin_spaces.bytes RETURNING bytes";
    let bound = |statement| sqlx::query(statement).bind(space.owner).bind(space.plugin);
    let row = match bound(db.either(SQLITE, POSTGRES)).fetch_optional(&mut **tx).await? {
        Some(row) => row,
        None => bound(MAKE).fetch_one(&mut **tx).await?,
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

/// Says how many bytes a space that is held has from now on; one without any is no more.
pub(super) async fn resize(tx: &mut Tx, space: Space<'_>, bytes: u64) -> Result<(), StoreError> {
    const RESIZE: &str = "UPDATE plugin_spaces SET bytes = $3 WHERE owner = $1 AND plugin = $2";
    const REMOVE: &str = "DELETE FROM plugin_spaces WHERE owner = $1 AND plugin = $2";
    let bound = |statement| sqlx::query(statement).bind(space.owner).bind(space.plugin);
    let query = if bytes == 0 { bound(REMOVE) } else { bound(RESIZE).bind(signed(bytes)) };
    query.execute(&mut **tx).await?;
    Ok(())
}

/// For how long a sum over all spaces is good enough: there may be one for each plugin and project.
const FRESH: Duration = Duration::from_secs(1);

/// The bytes of all spaces, and how many there may be.
#[derive(Debug)]
pub(super) struct Total {
    cap: u64,
    known: Mutex<Option<Known>>,
}

/// What was summed, and what this gateway has changed since.
#[derive(Clone, Copy, Debug)]
struct Known {
    bytes: u64,
    at: Instant,
}

/// What a space is to have.
pub(super) struct Room {
    pub(super) before: u64,
    pub(super) after: u64,
    pub(super) quota: u64,
}

impl Total {
    pub(super) fn new(cap: u64) -> Self {
        Self { cap, known: Mutex::default() }
    }

    /// Refuses what there is no room for. What several gateways add within a second may pass the cap; whatever comes after is
    /// refused. Nobody is refused by what is not known for sure.
    pub(super) async fn check(&self, tx: &mut Tx, room: Room) -> Result<(), KvError> {
        if room.after > room.quota {
            return Err(KvError::Quota);
        }
        let grown = room.after.saturating_sub(room.before);
        let fits = |bytes: u64| bytes.saturating_add(grown) <= self.cap;
        let known = *self.lock();
        if grown == 0 || known.is_some_and(|known| known.at.elapsed() < FRESH && fits(known.bytes)) {
            return Ok(());
        }
        let bytes = sum(tx).await?;
        *self.lock() = Some(Known { bytes, at: Instant::now() });
        if fits(bytes) { Ok(()) } else { Err(KvError::Cap) }
    }

    /// A space has changed, for good.
    pub(super) fn changed(&self, before: u64, after: u64) {
        if let Some(known) = self.lock().as_mut() {
            known.bytes = (known.bytes + after).saturating_sub(before);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn sum(tx: &mut Tx) -> Result<u64, StoreError> {
    const SUM: &str = "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM plugin_spaces";
    let row = sqlx::query(SUM).fetch_one(&mut **tx).await?;
    Ok(unsigned(row.try_get(0)?))
}
