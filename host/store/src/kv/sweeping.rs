//! Removing values that nobody can read any more: their time is over, or their project is archived. Each step holds one space
//! and removes a bounded number of its values.

use super::{Done, ENTRY_BYTES, Kv, KvError, Space, now_ms, space};
use crate::usage::unsigned;
use sqlx::Row;

/// Values that one step removes.
const VALUES: i64 = 512;

/// Spaces that somebody who needs room looks after.
const SOME: i64 = 4;

/// Spaces that a sweep takes up at once.
const MANY: i64 = 64;

const OVER: &str = "DELETE FROM plugin_values WHERE owner = $1 AND plugin = $2 AND key IN \
     (SELECT key FROM plugin_values WHERE owner = $1 AND plugin = $2 AND ends_ms <= $4 ORDER BY ends_ms LIMIT $3) \
     RETURNING CAST(LENGTH(key) + LENGTH(value) AS BIGINT)";
const ALL: &str = "DELETE FROM plugin_values WHERE owner = $1 AND plugin = $2 AND key IN \
     (SELECT key FROM plugin_values WHERE owner = $1 AND plugin = $2 ORDER BY key LIMIT $3) \
     RETURNING CAST(LENGTH(key) + LENGTH(value) AS BIGINT)";

/// What a step removes.
#[derive(Clone, Copy)]
enum Which {
    Over,
    All,
}

impl Kv {
    /// Removes all that is over, and what archived projects had; gives how many values that were. To be called again and
    /// again: nobody else removes what no longer counts for anybody.
    pub async fn sweep(&self) -> Result<u64, KvError> {
        let mut removed = self.sweep_over(MANY).await?;
        let mut last = removed;
        while last > 0 {
            last = self.sweep_over(MANY).await?;
            removed += last;
        }
        removed += self.sweep_archived().await?;
        // Of what was deleted or replaced nothing is left in the files either, as of what was deleted of conversations.
        self.db.wipe().await?;
        Ok(removed)
    }

    /// Makes room among all.
    pub(super) async fn sweep_some(&self) -> Result<u64, KvError> {
        self.sweep_over(SOME).await
    }

    /// Makes room in one space.
    pub(super) async fn sweep_space(&self, space: Space<'_>) -> Result<u64, KvError> {
        self.remove(space, Which::Over).await
    }

    /// In the spaces of the values that have been over for longest.
    async fn sweep_over(&self, most: i64) -> Result<u64, KvError> {
        const SPACES: &str = "SELECT DISTINCT owner, plugin FROM (SELECT owner, plugin FROM plugin_values \
             WHERE ends_ms <= $1 ORDER BY ends_ms LIMIT $2) AS oldest ORDER BY owner, plugin";
        let rows = sqlx::query(SPACES).bind(now_ms()).bind(most).fetch_all(self.db.pool()).await?;
        let mut removed = 0;
        for row in rows {
            let (owner, plugin): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            removed += self.remove(Space { owner: &owner, plugin: &plugin }, Which::Over).await?;
        }
        Ok(removed)
    }

    /// Nobody gets into an archived project again.
    async fn sweep_archived(&self) -> Result<u64, KvError> {
        const SPACES: &str = "SELECT s.owner, s.plugin FROM projects p JOIN plugin_spaces s ON s.owner = p.id \
             WHERE p.archived_ms IS NOT NULL ORDER BY s.owner, s.plugin LIMIT $1";
        let mut removed = 0;
        loop {
            let rows = sqlx::query(SPACES).bind(MANY).fetch_all(self.db.pool()).await?;
            let before = removed;
            for row in rows {
                let (owner, plugin): (String, String) = (row.try_get(0)?, row.try_get(1)?);
                removed += self.remove(Space { owner: &owner, plugin: &plugin }, Which::All).await?;
            }
            if removed == before {
                return Ok(removed);
            }
        }
    }

    async fn remove(&self, space: Space<'_>, which: Which) -> Result<u64, KvError> {
        let bound = |statement| sqlx::query(statement).bind(space.owner).bind(space.plugin).bind(VALUES);
        let query = match which {
            Which::Over => bound(OVER).bind(now_ms()),
            Which::All => bound(ALL),
        };
        let mut tx = self.db.write().await?;
        let before = self.hold(&mut tx, space).await?;
        let rows = query.fetch_all(&mut *tx).await?;
        let mut after = before;
        for row in &rows {
            after = after.saturating_sub(unsigned(row.try_get(0)?) + ENTRY_BYTES);
        }
        if matches!(which, Which::All) && (rows.len() as i64) < VALUES {
            // Nothing is left, whatever was counted.
            after = 0;
        }
        if rows.is_empty() && after == before {
            // A commit waits for the disk.
            tx.rollback().await?;
            return Ok(0);
        }
        space::resize(&mut tx, space, after).await?;
        let answer = rows.len() as u64;
        self.end(tx, Ok(Done { answer, before, after, leaves_words: true })).await
    }
}
