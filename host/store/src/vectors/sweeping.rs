//! Forgetting what was deleted, once copies have had the time to follow, and removing what archived projects had. Each step holds
//! one owner and removes a bounded number of entries.

use super::{Vectors, owner};
use crate::conversations::Tx;
use crate::keeping::{Done, KeepError, now_ms};
use crate::usage::{signed, unsigned};
use sqlx::Row;
use sqlx::any::AnyRow;
use std::time::Duration;
use tidegate_types::clock::millis;

/// For how long it is known what was deleted. A copy that looks less often is made anew.
const KNOWN: Duration = Duration::from_secs(600);

/// Entries that one step removes.
const ENTRIES: i64 = 512;

/// Owners that are taken up at once.
const MANY: i64 = 64;

const DELETED: &str = "DELETE FROM plugin_vectors WHERE owner = $1 AND (collection, id) IN \
     (SELECT collection, id FROM plugin_vectors WHERE owner = $1 AND deleted_ms <= $3 ORDER BY deleted_ms LIMIT $2) \
     RETURNING CAST(0 AS BIGINT), cost, changed";
const ALL: &str = "DELETE FROM plugin_vectors WHERE owner = $1 AND (collection, id) IN \
     (SELECT collection, id FROM plugin_vectors WHERE owner = $1 ORDER BY changed LIMIT $2) \
     RETURNING CASE WHEN deleted_ms IS NULL THEN cost ELSE CAST(0 AS BIGINT) END, \
     CASE WHEN deleted_ms IS NULL THEN CAST(0 AS BIGINT) ELSE cost END, changed";

/// What a step removes.
#[derive(Clone, Copy)]
enum Which {
    /// What was deleted by then.
    DeletedBy(i64),
    /// All there is.
    All,
}

impl Vectors {
    /// Forgets what was deleted a while ago, and removes what archived projects had; gives how many entries that were. To be called
    /// again and again. Who is held by somebody else is left for the next time.
    pub async fn sweep(&self) -> Result<u64, KeepError> {
        const OF_DELETED: &str = "SELECT owner FROM plugin_vectors WHERE deleted_ms <= $2 \
             GROUP BY owner ORDER BY MIN(deleted_ms) LIMIT $1";
        // Nobody gets into an archived project again.
        const OF_ARCHIVED: &str = "SELECT o.owner FROM projects p JOIN plugin_vector_owners o ON o.owner = p.id \
             WHERE p.archived_ms IS NOT NULL ORDER BY o.owner LIMIT $1";
        let by = now_ms().saturating_sub(signed(millis(KNOWN)));
        let mut removed = 0;
        loop {
            let deleted = sqlx::query(OF_DELETED).bind(MANY).bind(by).fetch_all(self.keeper.db.pool()).await?;
            let archived = sqlx::query(OF_ARCHIVED).bind(MANY).fetch_all(self.keeper.db.pool()).await?;
            let now = self.step_in_each(deleted, Which::DeletedBy(by)).await?
                + self.step_in_each(archived, Which::All).await?;
            removed += now;
            if now == 0 {
                // Of what was deleted or replaced nothing is left in the files either.
                self.keeper.db.wipe().await?;
                return Ok(removed);
            }
        }
    }

    /// Forgets what an owner deleted first, however short a time ago, until so many bytes of it are left.
    pub(super) async fn forget_oldest(&self, owner: &str, left: u64) -> Result<(), KeepError> {
        loop {
            let mut tx = self.keeper.db.write().await?;
            let before = self.hold(&mut tx, owner).await?;
            if before.deleted_bytes <= left {
                tx.rollback().await?;
                return Ok(());
            }
            if self.step_in(tx, owner, Which::DeletedBy(i64::MAX), before).await? == 0 {
                return Ok(());
            }
        }
    }

    async fn step_in_each(&self, owners: Vec<AnyRow>, which: Which) -> Result<u64, KeepError> {
        let mut removed = 0;
        for row in owners {
            let owner: String = row.try_get(0)?;
            let mut tx = self.keeper.db.write().await?;
            match owner::hold_if_free(&self.keeper.db, &mut tx, &owner).await? {
                Some(before) => removed += self.step_in(tx, &owner, which, before).await?,
                None => tx.rollback().await?,
            }
        }
        Ok(removed)
    }

    /// Of an owner that is held.
    async fn step_in(&self, mut tx: Tx, owner: &str, which: Which, before: owner::Owner) -> Result<u64, KeepError> {
        let bound = |statement| sqlx::query(statement).bind(owner).bind(ENTRIES);
        let query = match which {
            Which::DeletedBy(by) => bound(DELETED).bind(by),
            Which::All => bound(ALL),
        };
        let rows = query.fetch_all(&mut *tx).await?;
        let mut after = before;
        for row in &rows {
            after.bytes = after.bytes.saturating_sub(unsigned(row.try_get(0)?));
            after.deleted_bytes = after.deleted_bytes.saturating_sub(unsigned(row.try_get(1)?));
            after.forgotten = after.forgotten.max(row.try_get(2)?);
        }
        if matches!(which, Which::All) && (rows.len() as i64) < ENTRIES {
            // Nothing is left, whatever was counted.
            after.bytes = 0;
            owner::remove(&mut tx, owner).await?;
        } else if rows.is_empty() {
            // A commit waits for the disk.
            tx.rollback().await?;
            return Ok(0);
        } else {
            owner::write(&mut tx, owner, after, None).await?;
        }
        let answer = rows.len() as u64;
        self.keeper.end(tx, Ok(Done { answer, before: before.bytes, after: after.bytes, leaves_words: true })).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Place};

    #[tokio::test]
    async fn what_is_there_is_not_looked_at_to_forget_what_was_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        let plan = db.plan(DELETED).await;
        let by_deletion = "plugin_vectors_of_owner_by_deletion (owner=? AND deleted_ms<?)";
        assert!(plan.iter().any(|step| step.contains(by_deletion)), "{plan:?}");
        assert!(plan.iter().all(|step| !step.contains("plugin_vectors_by_change")), "{plan:?}");
    }
}
