//! What was said on a branch, in short. A summary stands at a message and holds for every branch through it; an edit
//! before it makes a branch without it. It is used as long as everything that it covers is there.

use super::messages::lock;
use super::{Conversations, Tx, clean, now_ms};
use crate::error::StoreError;
use sqlx::Row;
use sqlx::any::AnyRow;
use tidegate_types::TenantId;

/// A summary as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredSummary {
    /// The last message that it covers.
    pub message: String,
    /// How many messages it covers.
    pub covers: u64,
    /// What it says.
    pub text: String,
    /// Who wrote it.
    pub model: String,
    /// Milliseconds since 1970.
    pub created_ms: i64,
}

/// The messages from `$3` up to the first, itself included; those that were deleted are passed through.
macro_rules! path {
    () => {
        "WITH RECURSIVE path (id, parent) AS ( \
             SELECT id, parent FROM messages WHERE tenant = $1 AND conversation = $2 AND id = $3 \
             UNION ALL SELECT p.id, p.parent FROM messages p JOIN path ON p.id = path.parent \
             WHERE p.tenant = $1 AND p.conversation = $2) "
    };
}

/// How many of the path are there.
const COUNT: &str = concat!(
    path!(),
    "SELECT COUNT(*) AS n FROM path JOIN messages m ON m.id = path.id \
     WHERE m.tenant = $1 AND m.conversation = $2 AND m.deleted_ms = 0"
);

const NEWEST: &str = concat!(
    path!(),
    "SELECT s.message, s.covers, s.body, s.model, s.created_ms FROM path \
     JOIN summaries s ON s.message = path.id JOIN messages n ON n.id = path.id \
     WHERE s.tenant = $1 AND s.conversation = $2 AND s.deleted_ms = 0 AND n.tenant = $1 \
     AND n.conversation = $2 AND s.covers = (SELECT COUNT(*) FROM path q JOIN messages m ON m.id = q.id \
         WHERE m.tenant = $1 AND m.conversation = $2 AND m.deleted_ms = 0 AND m.position <= n.position) \
     ORDER BY n.position DESC LIMIT 1"
);
const ALL: &str = "SELECT message, covers, body, model, created_ms FROM summaries \
     WHERE tenant = $1 AND conversation = $2 AND deleted_ms = 0 ORDER BY created_ms, message";

impl Conversations {
    /// The summary that covers most of the branch that ends with `leaf`.
    pub async fn summary(
        &self,
        tenant: &TenantId,
        conversation: &str,
        leaf: &str,
    ) -> Result<Option<StoredSummary>, StoreError> {
        let query = sqlx::query(NEWEST).bind(tenant.as_str()).bind(conversation).bind(leaf);
        query.fetch_optional(self.db.pool()).await?.as_ref().map(read).transpose()
    }

    /// Keeps a summary, in place of what is older on its branch than the one that it goes on from. Says whether it could:
    /// not where the conversation, or something that it covers, was deleted meanwhile.
    pub async fn put_summary(
        &self,
        tenant: &TenantId,
        conversation: &str,
        new: &StoredSummary,
        goes_on_from: &str,
    ) -> Result<bool, StoreError> {
        const PUT: &str = "INSERT INTO summaries \
             (tenant, conversation, message, covers, body, model, created_ms, deleted_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, 0) \
             ON CONFLICT (tenant, conversation, message) DO UPDATE SET covers = excluded.covers, body = excluded.body, \
             model = excluded.model, created_ms = excluded.created_ms, deleted_ms = 0";
        const OLDER: &str = concat!(
            "UPDATE summaries SET deleted_ms = $4 WHERE tenant = $1 AND conversation = $2 AND deleted_ms = 0 \
             AND message <> $3 AND message IN (",
            path!(),
            "SELECT id FROM path)"
        );
        let mut tx = self.db.write().await?;
        if lock(&mut tx, tenant, conversation).await?.is_none() {
            return Ok(false);
        }
        let query = sqlx::query(COUNT).bind(tenant.as_str()).bind(conversation).bind(new.message.clone());
        let there: i64 = query.fetch_one(&mut *tx).await?.try_get("n")?;
        if there.max(0) as u64 != new.covers {
            return Ok(false);
        }
        let query = sqlx::query(PUT).bind(tenant.as_str()).bind(conversation).bind(new.message.clone());
        let query = query.bind(new.covers as i64).bind(clean(&new.text)).bind(new.model.clone()).bind(now_ms());
        query.execute(&mut *tx).await?;
        let query = sqlx::query(OLDER).bind(tenant.as_str()).bind(conversation).bind(goes_on_from);
        query.bind(now_ms()).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// All summaries of a conversation, oldest first.
    pub async fn summaries(&self, tenant: &TenantId, conversation: &str) -> Result<Vec<StoredSummary>, StoreError> {
        let rows = sqlx::query(ALL).bind(tenant.as_str()).bind(conversation).fetch_all(self.db.pool()).await?;
        rows.iter().map(read).collect()
    }
}

/// With a `CROSS JOIN`, which SQLite does in this order: else it may read the whole conversation for each message below.
const FORGET: &str = "UPDATE summaries SET deleted_ms = $4 WHERE tenant = $1 AND conversation = $2 \
     AND deleted_ms = 0 AND message IN ( \
     WITH RECURSIVE below (id) AS ( \
         SELECT id FROM messages WHERE tenant = $1 AND conversation = $2 AND id = $3 \
         UNION ALL SELECT m.id FROM below CROSS JOIN messages m \
         WHERE m.tenant = $1 AND m.conversation = $2 AND m.parent = below.id) \
     SELECT id FROM below)";

/// Deletes the summaries that cover a message.
pub(super) async fn forget(
    tx: &mut Tx,
    tenant: &TenantId,
    conversation: &str,
    message: &str,
) -> Result<(), StoreError> {
    let query = sqlx::query(FORGET).bind(tenant.as_str()).bind(conversation).bind(message).bind(now_ms());
    query.execute(&mut **tx).await?;
    Ok(())
}

fn read(row: &AnyRow) -> Result<StoredSummary, StoreError> {
    Ok(StoredSummary {
        message: row.try_get("message")?,
        covers: row.try_get::<i64, _>("covers")?.max(0) as u64,
        text: row.try_get("body")?,
        model: row.try_get("model")?,
        created_ms: row.try_get("created_ms")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Place};

    /// Of what was found to be the branch, or what follows a message.
    const OF_PATH: [&str; 4] = ["SCAN path", "SCAN q", "SCAN below", "AUTOMATIC COVERING INDEX (id=?)"];

    #[tokio::test]
    async fn summaries_are_read_without_a_look_at_what_others_have() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        for statement in [NEWEST, ALL, COUNT, FORGET] {
            db.assert_finds_own(statement, &OF_PATH).await;
        }
        let plan = db.plan(FORGET).await;
        let is_below = |step: &String| step.contains("messages_by_parent (tenant=? AND conversation=? AND parent=?)");
        assert!(plan.iter().any(is_below), "{plan:?}");
    }
}
