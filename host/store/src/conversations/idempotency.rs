//! Requests that say which they are: the same one again makes nothing new.

use super::{Conversations, Tx, now_ms};
use crate::error::StoreError;
use sqlx::Row;
use tidegate_types::TenantId;

/// How long a key is remembered.
const KEPT_MS: i64 = 24 * 3600 * 1000;

/// How often a key is claimed that others release meanwhile.
const TRIES: usize = 10;

/// What a key is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is new, and stands for this object from now on.
    New,
    /// The same request came before.
    Same {
        /// What it makes, or made.
        object: String,
        /// Whether another gateway is still at it, and there.
        is_running: bool,
    },
    /// Another request came with it before.
    Other,
}

impl Conversations {
    /// Claims a caller's key for `object`; both key and request come as hashes.
    pub async fn claim(
        &self,
        tenant: &TenantId,
        route: &str,
        key_hash: &str,
        fingerprint: &str,
        object: &str,
    ) -> Result<Claim, StoreError> {
        const OLD: &str = "DELETE FROM idempotency WHERE created_ms < $1";
        const CLAIM: &str = "INSERT INTO idempotency \
             (tenant, route, key_hash, fingerprint, object, created_ms, gateway) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (tenant, route, key_hash) DO NOTHING";
        let (mut tx, now) = (self.db.write().await?, now_ms());
        sqlx::query(OLD).bind(now - KEPT_MS).execute(&mut *tx).await?;
        for _ in 0..TRIES {
            let query = sqlx::query(CLAIM).bind(tenant.as_str()).bind(route).bind(key_hash);
            let query = query.bind(fingerprint).bind(object).bind(now).bind(&*self.gateway);
            let claim = match query.execute(&mut *tx).await?.rows_affected() {
                0 => self.claimed(&mut tx, tenant, (route, key_hash), fingerprint, now).await?,
                _ => Some(Claim::New),
            };
            // With Postgres another gateway may release it between the two.
            let Some(claim) = claim else { continue };
            tx.commit().await?;
            return Ok(claim);
        }
        Err(StoreError::Unavailable(sqlx::Error::RowNotFound))
    }

    /// What a key stands for that was claimed before, where it is there.
    async fn claimed(
        &self,
        tx: &mut Tx,
        tenant: &TenantId,
        (route, key_hash): (&str, &str),
        fingerprint: &str,
        now: i64,
    ) -> Result<Option<Claim>, StoreError> {
        // What this gateway is at is known to it before it asks here.
        const FIND: &str = "SELECT fingerprint, object, (SELECT COUNT(*) FROM gateways g \
                 WHERE g.name = idempotency.gateway AND g.until_ms > $4 AND g.name <> $5) AS running \
             FROM idempotency WHERE tenant = $1 AND route = $2 AND key_hash = $3";
        let query = sqlx::query(FIND).bind(tenant.as_str()).bind(route).bind(key_hash);
        let row = query.bind(now).bind(&*self.gateway).fetch_optional(&mut **tx).await?;
        let Some(row) = row else { return Ok(None) };
        let is_same = row.try_get::<String, _>("fingerprint")? == fingerprint;
        let (object, is_running) = (row.try_get("object")?, row.try_get::<i64, _>("running")? > 0);
        Ok(Some(if is_same { Claim::Same { object, is_running } } else { Claim::Other }))
    }

    /// Says that what a key was claimed for was done: it is there to be found, or gone.
    pub async fn done(&self, tenant: &TenantId, route: &str, key_hash: &str) -> Result<(), StoreError> {
        const DONE: &str =
            "UPDATE idempotency SET gateway = '' WHERE tenant = $1 AND route = $2 AND key_hash = $3 AND gateway = $4";
        let query = sqlx::query(DONE).bind(tenant.as_str()).bind(route).bind(key_hash).bind(&*self.gateway);
        query.execute(self.db.pool()).await?;
        Ok(())
    }

    /// Forgets a key that was claimed for `object`, whose request failed, so that it may be tried again.
    pub async fn release(
        &self,
        tenant: &TenantId,
        route: &str,
        key_hash: &str,
        object: &str,
    ) -> Result<(), StoreError> {
        const RELEASE: &str =
            "DELETE FROM idempotency WHERE tenant = $1 AND route = $2 AND key_hash = $3 AND object = $4";
        let query = sqlx::query(RELEASE).bind(tenant.as_str()).bind(route).bind(key_hash).bind(object);
        query.execute(self.db.pool()).await?;
        Ok(())
    }
}
