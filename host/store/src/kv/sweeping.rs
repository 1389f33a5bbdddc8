//! Removing values that nobody can read any more: their time is over, or their project is archived. Each step holds one space
//! and removes a bounded number of its values.

use super::{ENTRY_BYTES, Kv, Space, space};
use crate::conversations::Tx;
use crate::keeping::{Done, KeepError, now_ms};
use crate::usage::unsigned;
use sqlx::Row;
use sqlx::any::AnyRow;
use std::collections::HashSet;

/// Values that one step removes.
const VALUES: i64 = 512;

/// Spaces that somebody who needs room looks after.
const SOME: usize = 4;

/// Spaces that are taken up at once.
const MANY: i64 = 64;

const OVER: &str = "DELETE FROM plugin_values WHERE owner = $1 AND plugin = $2 AND key IN \
     (SELECT key FROM plugin_values WHERE owner = $1 AND plugin = $2 AND ends_ms <= $4 ORDER BY ends_ms LIMIT $3) \
     RETURNING CAST(LENGTH(key) + LENGTH(value) AS BIGINT)";
const ALL: &str = "DELETE FROM plugin_values WHERE owner = $1 AND plugin = $2 AND key IN \
     (SELECT key FROM plugin_values WHERE owner = $1 AND plugin = $2 ORDER BY key LIMIT $3) \
     RETURNING CAST(LENGTH(key) + LENGTH(value) AS BIGINT)";

/// The spaces of what has been over for longest. By spaces and not by values: one that is held may have any number of these. What
/// is over is found first, by its index: SQLite would go through all that will ever be, to have it by space.
const SPACES: &str = "WITH ended AS MATERIALIZED (SELECT owner, plugin, ends_ms FROM plugin_values WHERE ends_ms <= $1) \
     SELECT owner, plugin FROM ended GROUP BY owner, plugin ORDER BY MIN(ends_ms) LIMIT $2";

/// Spaces of others that a sweep waits for, each as long as a statement may. Where more are held, all may be.
const MOST_HELD: usize = 4;

/// The spaces that a sweep found held. It waits for each once, and does the others.
#[derive(Default)]
struct Held {
    spaces: HashSet<(String, String)>,
    first: Option<KeepError>,
}

/// What a step removes.
#[derive(Clone, Copy)]
enum Which {
    Over,
    All,
}

impl Kv {
    /// Removes all that is over, and what archived projects had; gives how many values that were. To be called again and
    /// again: nobody else removes what no longer counts for anybody. Where somebody holds a space, the error comes when the
    /// others were done.
    pub async fn sweep(&self) -> Result<u64, KeepError> {
        let mut held = Held::default();
        let mut removed = self.sweep_over(&mut held).await?;
        let mut last = removed;
        while last > 0 {
            last = self.sweep_over(&mut held).await?;
            removed += last;
        }
        removed += self.sweep_archived(&mut held).await?;
        // Of what was deleted or replaced nothing is left in the files either, as of what was deleted of conversations.
        self.keeper.db.wipe().await?;
        held.first.map_or(Ok(removed), Err)
    }

    /// Makes room among all; who needs it waits for no space of others.
    pub(super) async fn sweep_some(&self) -> Result<u64, KeepError> {
        let (mut removed, mut left) = (0, SOME);
        for row in self.over_for_longest().await? {
            self.keeper.caller.check()?;
            let (owner, plugin): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let space = Space { owner: &owner, plugin: &plugin };
            let mut tx = self.keeper.db.write().await?;
            let Some(before) = space::hold_if_free(&self.keeper.db, &mut tx, space).await? else {
                tx.rollback().await?;
                continue;
            };
            removed += self.remove_in(tx, space, Which::Over, before).await?;
            left -= 1;
            if left == 0 {
                break;
            }
        }
        Ok(removed)
    }

    /// Makes room in one space.
    pub(super) async fn sweep_space(&self, space: Space<'_>) -> Result<u64, KeepError> {
        self.remove(space, Which::Over).await
    }

    async fn sweep_over(&self, held: &mut Held) -> Result<u64, KeepError> {
        let rows = self.over_for_longest().await?;
        self.remove_in_each(rows, Which::Over, held).await
    }

    /// The spaces of the values that have been over for longest.
    async fn over_for_longest(&self) -> Result<Vec<AnyRow>, KeepError> {
        Ok(sqlx::query(SPACES).bind(now_ms()).bind(MANY).fetch_all(self.keeper.db.pool()).await?)
    }

    /// Nobody gets into an archived project again.
    async fn sweep_archived(&self, held: &mut Held) -> Result<u64, KeepError> {
        const SPACES: &str = "SELECT s.owner, s.plugin FROM projects p JOIN plugin_spaces s ON s.owner = p.id \
             WHERE p.archived_ms IS NOT NULL ORDER BY s.owner, s.plugin LIMIT $1";
        let mut removed = 0;
        loop {
            let rows = sqlx::query(SPACES).bind(MANY).fetch_all(self.keeper.db.pool()).await?;
            match self.remove_in_each(rows, Which::All, held).await? {
                0 => return Ok(removed),
                some => removed += some,
            }
        }
    }

    async fn remove_in_each(&self, rows: Vec<AnyRow>, which: Which, held: &mut Held) -> Result<u64, KeepError> {
        let mut removed = 0;
        for row in rows {
            let name: (String, String) = (row.try_get(0)?, row.try_get(1)?);
            if held.spaces.contains(&name) {
                continue;
            }
            match self.remove(Space { owner: &name.0, plugin: &name.1 }, which).await {
                Ok(some) => removed += some,
                Err(error) if self.is_of_its_space(&error) && held.spaces.len() < MOST_HELD => {
                    held.spaces.insert(name);
                    held.first.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }

    /// Whether somebody holds the space that a step was about, and perhaps no other.
    fn is_of_its_space(&self, error: &KeepError) -> bool {
        !self.keeper.db.is_held_as_a_whole() && matches!(error, KeepError::Store(error) if error.is_held())
    }

    async fn remove(&self, space: Space<'_>, which: Which) -> Result<u64, KeepError> {
        let mut tx = self.keeper.db.write().await?;
        let before = self.hold(&mut tx, space).await?;
        self.remove_in(tx, space, which, before).await
    }

    /// Of a space that is held and has so many bytes.
    async fn remove_in(&self, mut tx: Tx, space: Space<'_>, which: Which, before: u64) -> Result<u64, KeepError> {
        let bound = |statement| sqlx::query(statement).bind(space.owner).bind(space.plugin).bind(VALUES);
        let query = match which {
            Which::Over => bound(OVER).bind(now_ms()),
            Which::All => bound(ALL),
        };
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
        space::resize(&mut tx, space, after, None).await?;
        let answer = rows.len() as u64;
        self.keeper.end(tx, Ok(Done { answer, before, after, leaves_words: true })).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Place};
    use std::time::Duration;

    /// Before and after it knows how much there is: who needs room asks for the spaces on its way.
    #[tokio::test]
    async fn what_is_not_over_is_not_looked_at_to_find_what_is() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        let kv = Kv::new(&db, 1 << 20);
        for n in 0..100 {
            let space = Space { owner: &format!("o{}", n % 10), plugin: "p" };
            kv.set(space, &format!("k{n}"), b"v", Some(Duration::from_secs(3600)), 1 << 20).await.unwrap();
        }
        for statement in ["SELECT 1", "ANALYZE"] {
            sqlx::query(statement).execute(kv.keeper.db.pool()).await.unwrap();
            let plan = db.plan(SPACES).await;
            let looks = plan.iter().filter(|step| step.contains("plugin_values"));
            let is_bound = |step: &String| step.contains("plugin_values_by_end (ends_ms<?)");
            assert!(looks.clone().count() == 1 && looks.clone().all(is_bound), "{plan:?}");
        }
    }
}
