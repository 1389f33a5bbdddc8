//! What plugins keep in `kv`, where the operator keeps it here: what it is and how it changes. `kv/space.rs` counts its bytes,
//! `kv/reading.rs` reads, `kv/sweeping.rs` removes what is over.
//!
//! Invariants:
//! - a space is one plugin's of one owner; each statement names both;
//! - the bytes of a space are those of its values: who changes these holds the space's row, so that of two gateways at once
//!   each sees what the other has done, and a sum is exact;
//! - nobody holds two spaces, so nobody waits in a circle;
//! - what a caller no longer waits for when it comes to hold its space changes nothing: it would undo what came after it.

mod reading;
mod space;
mod sweeping;

use crate::conversations::Tx;
use crate::db::Db;
use crate::error::StoreError;
use crate::keeping::{Done, KeepError, Keeper, Room, now_ms};
use crate::usage::{signed, unsigned};
use sqlx::Row;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tidegate_types::clock::millis;

/// What a value costs beside its key and itself.
const ENTRY_BYTES: u64 = 64;

/// Bytes of a number that is added to. Decimal text has at most 20; somebody may have written zeros in front.
const MAX_NUMBER_BYTES: i64 = 64;

/// Whose values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space<'a> {
    /// A project's id, or a tenant.
    pub owner: &'a str,
    /// A plugin's name.
    pub plugin: &'a str,
}

/// The values of all plugins and owners. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Kv {
    keeper: Keeper,
}

impl Kv {
    /// Of `db`, with `cap` bytes over all spaces, and at most twice as many where some have less than their share of it.
    pub fn new(db: &Db, cap: u64) -> Self {
        Self { keeper: Keeper::new(db, cap, space::SUM) }
    }

    /// The same for a call of one who waits for as long as `caller` is there. One that comes to hold its space later is
    /// [`KeepError::GivenUp`].
    pub fn of_caller(&self, caller: &Arc<()>) -> Self {
        Self { keeper: self.keeper.of_caller(caller) }
    }

    /// The same for a call of an owner whose bytes count for a tenant's share, and not for one of its own.
    pub fn of_share(&self, tenant: &str) -> Self {
        Self { keeper: self.keeper.of_share(tenant) }
    }

    /// Sets a value, which lives for `ttl` where one is given. `quota` bounds the bytes of the space.
    pub async fn set(
        &self,
        space: Space<'_>,
        key: &str,
        value: &[u8],
        ttl: Option<Duration>,
        quota: u64,
    ) -> Result<(), KeepError> {
        self.change(&Change { space, key, what: What::Set(value), ttl, quota }).await.map(drop)
    }

    /// Adds to a number and gives the sum. An absent one counts from 0 and then lives for `ttl`, which later calls leave alone.
    pub async fn increment(
        &self,
        space: Space<'_>,
        key: &str,
        delta: i64,
        ttl: Option<Duration>,
        quota: u64,
    ) -> Result<i64, KeepError> {
        self.change(&Change { space, key, what: What::Add(delta), ttl, quota }).await
    }

    /// Removes a value; an absent one is no error.
    pub async fn delete(&self, space: Space<'_>, key: &str) -> Result<(), KeepError> {
        const IS_THERE: &str = "SELECT 1 FROM plugin_values WHERE owner = $1 AND plugin = $2 AND key = $3";
        // What is not there makes no space, and waits for nobody who writes.
        let is_there = sqlx::query(IS_THERE).bind(space.owner).bind(space.plugin).bind(key.as_bytes());
        if is_there.fetch_optional(self.keeper.db.pool()).await?.is_none() {
            return Ok(());
        }
        let mut tx = self.keeper.db.write().await?;
        let done = self.delete_in(&mut tx, space, key).await;
        self.keeper.end(tx, done).await
    }

    async fn delete_in(&self, tx: &mut Tx, space: Space<'_>, key: &str) -> Result<Done<()>, KeepError> {
        const DELETE: &str = "DELETE FROM plugin_values WHERE owner = $1 AND plugin = $2 AND key = $3 \
             RETURNING CAST(LENGTH(value) AS BIGINT)";
        let before = self.hold(tx, space).await?;
        let mut after = before;
        let delete = sqlx::query(DELETE).bind(space.owner).bind(space.plugin).bind(key.as_bytes());
        for row in delete.fetch_all(&mut **tx).await? {
            after = after.saturating_sub(cost(key, row.try_get::<i64, _>(0)?));
        }
        space::resize(tx, space, after, self.keeper.known_share()).await?;
        Ok(Done { answer: (), before, after, leaves_words: true })
    }

    /// Changes a value, once there is room for it: as long as something is over, that gives way. Only then is it past the cap.
    async fn change(&self, change: &Change<'_>) -> Result<i64, KeepError> {
        loop {
            let removed = match self.try_change(change, false).await {
                Err(KeepError::Quota) => self.sweep_space(change.space).await?,
                Err(KeepError::Cap) => self.sweep_some().await?,
                done => return done,
            };
            if removed == 0 {
                // Somebody else may have removed it.
                return self.try_change(change, true).await;
            }
        }
    }

    /// The same, where there is room.
    async fn try_change(&self, change: &Change<'_>, past_cap: bool) -> Result<i64, KeepError> {
        let mut tx = self.keeper.db.write().await?;
        let done = self.change_in(&mut tx, change, past_cap).await;
        self.keeper.end(tx, done).await
    }

    /// Holds a space until the transaction ends, for one who still waits; gives its bytes.
    async fn hold(&self, tx: &mut Tx, space: Space<'_>) -> Result<u64, KeepError> {
        let bytes = space::hold(&self.keeper.db, tx, space, self.keeper.share(space.owner)).await?;
        self.keeper.caller.check().map(|()| bytes)
    }

    /// Answers the sum.
    async fn change_in(&self, tx: &mut Tx, change: &Change<'_>, past_cap: bool) -> Result<Done<i64>, KeepError> {
        let Change { space, key, quota, .. } = *change;
        let before = self.hold(tx, space).await?;
        // After the wait for the space: what is over by then is.
        let now = now_ms();
        let old = find(tx, space, key).await?;
        let replaced = old.as_ref().map_or(0, |old| cost(key, old.len));
        let is_there = old.is_some();
        let live = old.filter(|old| old.ends_ms.is_none_or(|ends| ends > now));
        // A number that is added to says nothing; whatever was over may have been a text.
        let leaves_words = is_there && (live.is_none() || matches!(change.what, What::Set(_)));
        let (value, sum) = change.what.apply(live.as_ref())?;
        let after = before.saturating_sub(replaced).saturating_add(cost(key, signed(value.len() as u64)));
        self.keeper.check(tx, space.owner, Room { before, after, quota, past_cap }).await?;
        put(tx, change, value.into_owned(), change.ends_ms(live.as_ref(), now)).await?;
        if after != before {
            space::resize(tx, space, after, self.keeper.known_share()).await?;
        }
        Ok(Done { answer: sum, before, after, leaves_words })
    }
}

/// A value is to change.
struct Change<'a> {
    space: Space<'a>,
    key: &'a str,
    what: What<'a>,
    ttl: Option<Duration>,
    quota: u64,
}

impl Change<'_> {
    /// When the value is over. A number keeps the life that it began with.
    fn ends_ms(&self, live: Option<&Old>, now: i64) -> Option<i64> {
        match (&self.what, live) {
            (What::Add(_), Some(number)) => number.ends_ms,
            _ => self.ttl.map(|ttl| now.saturating_add(signed(millis(ttl)))),
        }
    }
}

/// What becomes of a value.
enum What<'a> {
    Set(&'a [u8]),
    Add(i64),
}

impl<'a> What<'a> {
    /// The value after it, and the sum where it is one.
    fn apply(&self, live: Option<&Old>) -> Result<(Cow<'a, [u8]>, i64), KeepError> {
        match *self {
            Self::Set(value) => Ok((Cow::Borrowed(value), 0)),
            Self::Add(delta) => {
                let number = live.map_or(Ok(0), Old::number)?;
                let sum = number.checked_add(delta).ok_or(KeepError::Overflow(number))?;
                Ok((Cow::Owned(sum.to_string().into_bytes()), sum))
            }
        }
    }
}

/// A value that is there, over or not.
struct Old {
    len: i64,
    /// Where it is short enough for a number.
    text: Option<Vec<u8>>,
    ends_ms: Option<i64>,
}

impl Old {
    fn number(&self) -> Result<i64, KeepError> {
        let text = self.text.as_deref().and_then(|text| std::str::from_utf8(text).ok());
        text.and_then(|text| text.parse().ok()).ok_or(KeepError::NotANumber)
    }
}

async fn find(tx: &mut Tx, space: Space<'_>, key: &str) -> Result<Option<Old>, KeepError> {
    const FIND: &str = "SELECT CAST(LENGTH(value) AS BIGINT), CASE WHEN LENGTH(value) <= $4 THEN value END, ends_ms \
         FROM plugin_values WHERE owner = $1 AND plugin = $2 AND key = $3";
    let query = sqlx::query(FIND).bind(space.owner).bind(space.plugin).bind(key.as_bytes()).bind(MAX_NUMBER_BYTES);
    let row = query.fetch_optional(&mut **tx).await?;
    let read = |row: sqlx::any::AnyRow| -> Result<Old, sqlx::Error> {
        Ok(Old { len: row.try_get(0)?, text: row.try_get(1)?, ends_ms: row.try_get(2)? })
    };
    Ok(row.map(read).transpose()?)
}

async fn put(tx: &mut Tx, change: &Change<'_>, value: Vec<u8>, ends_ms: Option<i64>) -> Result<(), StoreError> {
    const PUT: &str = "INSERT INTO plugin_values (owner, plugin, key, value, ends_ms) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (owner, plugin, key) DO UPDATE SET value = excluded.value, ends_ms = excluded.ends_ms";
    let Space { owner, plugin } = change.space;
    let query = sqlx::query(PUT).bind(owner).bind(plugin).bind(change.key.as_bytes()).bind(value).bind(ends_ms);
    query.execute(&mut **tx).await?;
    Ok(())
}

/// What a value of so many bytes costs.
fn cost(key: &str, len: i64) -> u64 {
    key.len() as u64 + unsigned(len) + ENTRY_BYTES
}
