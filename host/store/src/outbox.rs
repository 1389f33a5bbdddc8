//! Events for others: kept until they were taken, so each arrives at least once, under an id that stays the same.

use crate::db::Db;
use crate::error::StoreError;
use crate::usage::unsigned;
use sqlx::Row;

/// An event that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The same however often it is sent.
    pub id: String,
    /// JSON.
    pub payload: String,
}

/// The events that wait.
#[derive(Clone, Debug)]
pub struct Outbox(Db);

impl Outbox {
    /// Of `db`.
    pub fn new(db: Db) -> Self {
        Self(db)
    }

    /// The oldest that wait.
    pub async fn oldest(&self, most: u32) -> Result<Vec<Waiting>, StoreError> {
        let rows = sqlx::query("SELECT id, payload FROM outbox ORDER BY created_ms, id LIMIT $1")
            .bind(i64::from(most))
            .fetch_all(self.0.pool())
            .await?;
        rows.iter().map(|row| Ok(Waiting { id: row.try_get(0)?, payload: row.try_get(1)? })).collect()
    }

    /// How many wait.
    pub async fn count(&self) -> Result<u64, StoreError> {
        let row = sqlx::query("SELECT COUNT(*) FROM outbox").fetch_one(self.0.pool()).await?;
        Ok(unsigned(row.try_get(0)?))
    }

    /// One was taken.
    pub async fn taken(&self, id: &str) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM outbox WHERE id = $1").bind(id).execute(self.0.pool()).await?;
        Ok(())
    }
}
