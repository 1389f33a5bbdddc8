//! API keys that are made while the server runs. A key is shown to whoever makes it and kept as its hash only.

use crate::db::Db;
use crate::ended::{Ended, Ending};
use crate::error::StoreError;
use crate::projects::KeptProject;
use crate::usage::{signed, unsigned};
use sqlx::{Any, Executor, Row, Transaction};

/// A key as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptKey {
    /// For logs and metrics; no two valid keys have it, but for one that takes another's place.
    pub name: String,
    /// Whose data and share.
    pub tenant: String,
    /// `blake3:` and 64 hex digits.
    pub hash: String,
    /// What else the key says of its caller, as JSON; the store does not look into it.
    pub settings: String,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// The key that made it.
    pub created_by: String,
    /// From then on it is refused; milliseconds since 1970.
    pub expires_ms: Option<u64>,
    /// Since when it is refused, where somebody took it back.
    pub revoked_ms: Option<u64>,
}

/// What became of a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is kept.
    Done,
    /// A valid key has its name; or of one that takes another's place, there is no such other.
    Refused,
    /// Its tenant has as many valid keys as it may.
    TooMany,
}

/// The keys that are kept.
#[derive(Clone, Debug)]
pub struct Keys(Db);

impl Keys {
    /// Of `db`.
    pub fn new(db: Db) -> Self {
        Self(db)
    }

    /// Keeps a new key, where no valid one has its name, and its tenant has fewer than `most` valid ones. So many of those
    /// that have ended are kept, too: the last.
    pub async fn add(&self, key: &KeptKey, most: u32) -> Result<Added, StoreError> {
        let mut tx = self.0.write_keys_alone().await?;
        if is_taken(&mut tx, &key.name, key.created_ms).await? {
            return Ok(Added::Refused);
        }
        if is_full(&mut tx, key, most).await? {
            return Ok(Added::TooMany);
        }
        insert(&mut tx, key).await?;
        forget(&mut tx, key, most).await?;
        tx.commit().await?;
        Ok(Added::Done)
    }

    /// Keeps a new key in the place of the valid ones of its name, which end at `old_end_ms` unless they end before. It has
    /// the settings of the one of the hash `of`, which nobody may have taken back. Those that go on count for `most` as by
    /// [`Self::add`].
    pub async fn rotate(&self, key: &KeptKey, of: &str, old_end_ms: u64, most: u32) -> Result<Added, StoreError> {
        // A key that is taken back meanwhile would else be followed by one that nobody has taken back; also where another
        // has its name by now, which may do less.
        let mut tx = self.0.write_keys_alone().await?;
        if !is_taken(&mut tx, &key.name, key.created_ms).await? || !is_unrevoked(&mut tx, of).await? {
            return Ok(Added::Refused);
        }
        sqlx::query(
            "UPDATE api_keys SET expires_ms = $1 \
             WHERE name = $2 AND revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > $1)",
        )
        .bind(signed(old_end_ms))
        .bind(key.name.as_str())
        .execute(&mut *tx)
        .await?;
        // One that ends at once leaves its place, however many there are.
        if old_end_ms > key.created_ms && is_full(&mut tx, key, most).await? {
            return Ok(Added::TooMany);
        }
        insert(&mut tx, key).await?;
        forget(&mut tx, key, most).await?;
        tx.commit().await?;
        Ok(Added::Done)
    }

    /// Refuses all keys of a name from now on, where `may` agrees. It is asked about all keys and projects that there are,
    /// and of several who end some of them each sees what the one before has left.
    pub async fn revoke(
        &self,
        name: &str,
        now_ms: u64,
        may: impl FnOnce(Vec<KeptKey>, Vec<KeptProject>) -> bool + Send,
    ) -> Result<Ended, StoreError> {
        let statement = "UPDATE api_keys SET revoked_ms = $1 WHERE name = $2 AND revoked_ms IS NULL";
        let known = |keys: &[KeptKey], _: &[_]| keys.iter().any(|key| key.name == name && key.revoked_ms.is_none());
        Ending { statement, name, now_ms }.run(&self.0, known, may).await
    }

    /// All keys, those that are refused included: by name, the newest first.
    pub async fn all(&self) -> Result<Vec<KeptKey>, StoreError> {
        read_all(self.0.pool()).await
    }
}

pub(crate) async fn read_all<'c>(from: impl Executor<'c, Database = Any>) -> Result<Vec<KeptKey>, StoreError> {
    let rows = sqlx::query(
        "SELECT name, tenant, hash, settings, created_ms, created_by, expires_ms, revoked_ms \
         FROM api_keys ORDER BY name, created_ms DESC, hash",
    )
    .fetch_all(from)
    .await?;
    rows.iter().map(|row| Ok(key(row)?)).collect()
}

async fn is_taken(tx: &mut Transaction<'static, Any>, name: &str, now_ms: u64) -> Result<bool, StoreError> {
    let row = sqlx::query(
        "SELECT COUNT(*) FROM api_keys \
         WHERE name = $1 AND revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > $2)",
    )
    .bind(name)
    .bind(signed(now_ms))
    .fetch_one(&mut **tx)
    .await?;
    Ok(row.try_get::<i64, _>(0)? > 0)
}

async fn is_unrevoked(tx: &mut Transaction<'static, Any>, hash: &str) -> Result<bool, StoreError> {
    let statement = "SELECT COUNT(*) FROM api_keys WHERE hash = $1 AND revoked_ms IS NULL";
    let row = sqlx::query(statement).bind(hash).fetch_one(&mut **tx).await?;
    Ok(row.try_get::<i64, _>(0)? > 0)
}

async fn is_full(tx: &mut Transaction<'static, Any>, key: &KeptKey, most: u32) -> Result<bool, StoreError> {
    let row = sqlx::query(
        "SELECT COUNT(*) FROM api_keys \
         WHERE tenant = $1 AND revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > $2)",
    )
    .bind(key.tenant.as_str())
    .bind(signed(key.created_ms))
    .fetch_one(&mut **tx)
    .await?;
    Ok(unsigned(row.try_get::<i64, _>(0)?) >= u64::from(most))
}

/// Forgets the keys of the tenant that have ended, but for the last: all gateways read all keys again and again.
async fn forget(tx: &mut Transaction<'static, Any>, key: &KeptKey, most: u32) -> Result<(), StoreError> {
    sqlx::query(
        "DELETE FROM api_keys WHERE hash IN ( \
             SELECT hash FROM api_keys WHERE tenant = $1 AND (revoked_ms IS NOT NULL OR expires_ms <= $2) \
             ORDER BY COALESCE(revoked_ms, expires_ms) DESC, hash LIMIT $3 OFFSET $4)",
    )
    .bind(key.tenant.as_str())
    .bind(signed(key.created_ms))
    .bind(i64::MAX)
    .bind(i64::from(most))
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn insert(tx: &mut Transaction<'static, Any>, key: &KeptKey) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO api_keys (name, tenant, hash, settings, created_ms, created_by, expires_ms) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(key.name.as_str())
    .bind(key.tenant.as_str())
    .bind(key.hash.as_str())
    .bind(key.settings.as_str())
    .bind(signed(key.created_ms))
    .bind(key.created_by.as_str())
    .bind(key.expires_ms.map(signed))
    .execute(&mut **tx)
    .await?;
    Ok(())
}

fn key(row: &sqlx::any::AnyRow) -> Result<KeptKey, sqlx::Error> {
    let time = |i: usize| row.try_get::<Option<i64>, _>(i).map(|time| time.map(unsigned));
    Ok(KeptKey {
        name: row.try_get(0)?,
        tenant: row.try_get(1)?,
        hash: row.try_get(2)?,
        settings: row.try_get(3)?,
        created_ms: unsigned(row.try_get(4)?),
        created_by: row.try_get(5)?,
        expires_ms: time(6)?,
        revoked_ms: time(7)?,
    })
}
