//! Deleting what archived projects have: nobody gets into one again, so nobody else would.

use super::{Conversations, now_ms};
use crate::error::StoreError;
use sqlx::Row;
use std::collections::BTreeSet;

/// Conversations that one step deletes. With SQLite nobody else writes until it has ended.
const SOME: i64 = 256;

/// SQLite goes from left to right here: it would look at all conversations for whether their project is archived.
const CONVERSATIONS: &str = "SELECT c.tenant, c.id FROM projects p CROSS JOIN conversations c \
     WHERE c.tenant = p.id AND p.archived_ms IS NOT NULL AND c.deleted_ms = 0 LIMIT $1";

impl Conversations {
    /// Deletes the conversations of archived projects, and the threads of their responses, as [`Self::delete`] does: a purge
    /// removes them. Gives how many that were. To be called again and again: a request may have run when its project was archived.
    pub async fn delete_archived(&self) -> Result<u64, StoreError> {
        let (mut deleted, mut last) = (0, self.delete_some_archived().await?);
        while last > 0 {
            deleted += last;
            last = self.delete_some_archived().await?;
        }
        Ok(deleted)
    }

    async fn delete_some_archived(&self) -> Result<u64, StoreError> {
        const CONVERSATION: &str =
            "UPDATE conversations SET deleted_ms = $3 WHERE tenant = $1 AND id = $2 AND deleted_ms = 0";
        const RESPONSES: &str =
            "UPDATE responses SET deleted_ms = $3 WHERE tenant = $1 AND conversation = $2 AND deleted_ms = 0";
        let rows = sqlx::query(CONVERSATIONS).bind(SOME).fetch_all(self.db.pool()).await?;
        if rows.is_empty() {
            return Ok(0);
        }
        // In order, so that of two gateways neither holds what the other waits for.
        let names: BTreeSet<(String, String)> =
            rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, StoreError>>()?;
        let (mut tx, now, mut deleted) = (self.db.write().await?, now_ms(), 0);
        for (tenant, id) in &names {
            for (statement, count) in [(CONVERSATION, 1), (RESPONSES, 0)] {
                let query = sqlx::query(statement).bind(tenant.as_str()).bind(id.as_str()).bind(now);
                deleted += count * query.execute(&mut *tx).await?.rows_affected();
            }
        }
        tx.commit().await?;
        Ok(deleted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Place};

    #[tokio::test]
    async fn what_archived_projects_have_is_found_without_a_look_at_what_others_have() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        let plan = db.plan(CONVERSATIONS).await;
        assert!(plan.iter().any(|step| step.starts_with("SEARCH c ") && step.contains("(tenant=?")), "{plan:#?}");
    }
}
