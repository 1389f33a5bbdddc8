//! Requests that say which they are: the same one again makes nothing new.

use super::{Conversations, now_ms};
use crate::error::StoreError;
use sqlx::Row;
use tidegate_types::TenantId;

/// How long a key is remembered.
const KEPT_MS: i64 = 24 * 3600 * 1000;

/// What a key is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is new, and stands for this object from now on.
    New,
    /// The same request made this object before.
    Same(String),
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
        const CLAIM: &str = "INSERT INTO idempotency (tenant, route, key_hash, fingerprint, object, created_ms) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant, route, key_hash) DO NOTHING";
        const FIND: &str =
            "SELECT fingerprint, object FROM idempotency WHERE tenant = $1 AND route = $2 AND key_hash = $3";
        let mut tx = self.db.write().await?;
        sqlx::query(OLD).bind(now_ms() - KEPT_MS).execute(&mut *tx).await?;
        let query = sqlx::query(CLAIM).bind(tenant.as_str()).bind(route).bind(key_hash);
        let claimed = query.bind(fingerprint).bind(object).bind(now_ms()).execute(&mut *tx).await?.rows_affected();
        let claim = if claimed > 0 {
            Claim::New
        } else {
            let query = sqlx::query(FIND).bind(tenant.as_str()).bind(route).bind(key_hash);
            let row = query.fetch_one(&mut *tx).await?;
            let same = row.try_get::<String, _>("fingerprint")? == fingerprint;
            if same { Claim::Same(row.try_get("object")?) } else { Claim::Other }
        };
        tx.commit().await?;
        Ok(claim)
    }

    /// Forgets a key whose request failed, so that it may be tried again.
    pub async fn release(&self, tenant: &TenantId, route: &str, key_hash: &str) -> Result<(), StoreError> {
        const RELEASE: &str = "DELETE FROM idempotency WHERE tenant = $1 AND route = $2 AND key_hash = $3";
        let query = sqlx::query(RELEASE).bind(tenant.as_str()).bind(route).bind(key_hash);
        query.execute(self.db.pool()).await?;
        Ok(())
    }
}
