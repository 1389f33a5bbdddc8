//! Random keys that all programs with one database have in common, for as long as it lasts.

use crate::db::Db;
use crate::error::StoreError;
use sqlx::Row;

impl Db {
    /// The key of that name: `fresh` where there is none yet, which it then is for everyone and for ever.
    pub async fn lasting_key(&self, name: &str, fresh: &str) -> Result<String, StoreError> {
        let mut tx = self.write().await?;
        sqlx::query("INSERT INTO lasting_keys (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING")
            .bind(name)
            .bind(fresh)
            .execute(&mut *tx)
            .await?;
        let kept = sqlx::query("SELECT value FROM lasting_keys WHERE name = $1");
        let kept = kept.bind(name).fetch_one(&mut *tx).await?;
        tx.commit().await?;
        Ok(kept.try_get(0)?)
    }
}
