//! People who are logged in. What their browsers hold is kept as its hash only.

use crate::db::Db;
use crate::error::StoreError;
use crate::usage::{signed, unsigned};
use sqlx::Row;

/// Somebody who is logged in. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptSession {
    /// Of what the browser holds.
    pub hash: String,
    /// Whose data.
    pub tenant: String,
    /// What the issuer said of the person, as JSON; the store does not look into it.
    pub claims: String,
    /// When the person logged in.
    pub created_ms: u64,
    /// When the session was last used.
    pub seen_ms: u64,
    /// When it ends, used or not.
    pub ends_ms: u64,
}

/// The sessions that are kept.
#[derive(Clone, Debug)]
pub struct Sessions(Db);

const MAKE_ROOM: &str = "DELETE FROM sessions WHERE ends_ms <= $1 OR seen_ms <= $2 OR hash = $3";

impl Sessions {
    /// Of `db`.
    pub fn new(db: Db) -> Self {
        Self(db)
    }

    /// Keeps a new session in the place of the one that the same browser had before, and removes those that ended before
    /// `created_ms`, or were last used before `idle_ms`.
    pub async fn open(&self, session: &KeptSession, before: Option<&str>, idle_ms: u64) -> Result<(), StoreError> {
        let mut tx = self.0.write().await?;
        sqlx::query(MAKE_ROOM)
            .bind(signed(session.created_ms))
            .bind(signed(idle_ms))
            .bind(before.unwrap_or_default())
            .execute(&mut *tx)
            .await?;
        sqlx::query(
            "INSERT INTO sessions (hash, tenant, claims, created_ms, seen_ms, ends_ms) VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(session.hash.as_str())
        .bind(session.tenant.as_str())
        .bind(session.claims.as_str())
        .bind(signed(session.created_ms))
        .bind(signed(session.seen_ms))
        .bind(signed(session.ends_ms))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// The session of that hash, also one that is over.
    pub async fn find(&self, hash: &str) -> Result<Option<KeptSession>, StoreError> {
        let row =
            sqlx::query("SELECT hash, tenant, claims, created_ms, seen_ms, ends_ms FROM sessions WHERE hash = $1")
                .bind(hash)
                .fetch_optional(self.0.pool())
                .await?;
        Ok(row.as_ref().map(session).transpose()?)
    }

    /// It was used now.
    pub async fn touch(&self, hash: &str, now_ms: u64) -> Result<(), StoreError> {
        sqlx::query("UPDATE sessions SET seen_ms = $1 WHERE hash = $2 AND seen_ms < $1")
            .bind(signed(now_ms))
            .bind(hash)
            .execute(self.0.pool())
            .await?;
        Ok(())
    }

    /// Removes it; says whether it was there.
    pub async fn end(&self, hash: &str) -> Result<bool, StoreError> {
        let done = sqlx::query("DELETE FROM sessions WHERE hash = $1").bind(hash).execute(self.0.pool()).await?;
        Ok(done.rows_affected() > 0)
    }
}

fn session(row: &sqlx::any::AnyRow) -> Result<KeptSession, sqlx::Error> {
    Ok(KeptSession {
        hash: row.try_get(0)?,
        tenant: row.try_get(1)?,
        claims: row.try_get(2)?,
        created_ms: unsigned(row.try_get(3)?),
        seen_ms: unsigned(row.try_get(4)?),
        ends_ms: unsigned(row.try_get(5)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;

    #[tokio::test]
    async fn a_login_does_not_look_at_every_session() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        let plan = db.plan(MAKE_ROOM).await;
        assert!(plan.len() > 3 && !plan.iter().any(|step| step.starts_with("SCAN")), "{plan:?}");
    }
}
