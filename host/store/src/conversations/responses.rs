//! Responses: what was answered, as the caller was told, and where its messages are.
//!
//! A response outside of a conversation has one of its own that is not listed; one that names it as the previous goes
//! on there, so that every chain of responses is a branch of a tree.

use super::messages::{append_of, lock};
use super::{At, Conversation, Conversations, NewMessage, Origin, Tx, now_ms};
use crate::error::StoreError;
use crate::usage::signed;
use sqlx::Row;
use sqlx::any::AnyRow;
use tidegate_types::TenantId;

/// Of a response that nobody makes any more, by the name of this gateway and the time.
macro_rules! left_behind {
    ($own:literal, $now:literal) => {
        concat!(
            "status IN ('queued', 'in_progress') AND gateway <> ",
            $own,
            " AND NOT EXISTS (SELECT 1 FROM gateways g WHERE g.name = responses.gateway AND g.until_ms > ",
            $now,
            ")"
        )
    };
}

/// A response to be written, or to be written anew with what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewResponse {
    /// Names it within its tenant.
    pub id: String,
    /// The response that it goes on from; empty for none.
    pub previous: String,
    /// The wire's word.
    pub status: String,
    /// The whole object, as the caller is told.
    pub body: String,
    /// What it used, once it has ended and somebody counted.
    pub used: Option<Used>,
}

/// What an answer says it used, for whoever audits the books.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    /// Names its entry in the books.
    pub generation: String,
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
}

/// A response as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResponse {
    /// Where its messages are.
    pub conversation: String,
    /// Its last message, or where it has none the one that it goes on from; empty where there is neither.
    pub leaf: String,
    /// The wire's word.
    pub status: String,
    /// The whole object, as the caller was told.
    pub body: String,
    /// Milliseconds since 1970.
    pub created_ms: i64,
}

/// A response that was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// Its name.
    pub id: String,
    /// Whether it was still being made.
    pub is_running: bool,
    /// When it was begun, in milliseconds since 1970.
    pub created_ms: i64,
}

/// What came of writing a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is there.
    Written,
    /// Its conversation, its response or what it goes on from was deleted meanwhile.
    Deleted,
    /// Another gateway makes the response by now.
    Taken,
}

/// What one response leaves behind, written together or not at all.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Where its messages go; one that is not there is made, and not listed.
    pub conversation: String,
    /// Behind which message.
    pub at: At,
    /// The response itself.
    pub response: NewResponse,
    /// What was asked.
    pub input: Vec<NewMessage>,
    /// What was answered.
    pub output: Vec<NewMessage>,
    /// Whether `conversation` is a caller's, which must be there.
    pub listed: bool,
}

impl StoredResponse {
    /// Whether it is still being made.
    pub fn is_running(&self) -> bool {
        is_running(&self.status)
    }
}

/// With a `CROSS JOIN`, which SQLite does in this order: else it may read all the tenant's responses for each that goes.
const DELETE: &str = "UPDATE responses SET deleted_ms = $3 WHERE tenant = $1 AND deleted_ms = 0 AND id IN ( \
     WITH RECURSIVE gone (id) AS (SELECT id FROM responses WHERE tenant = $1 AND id = $2 AND deleted_ms = 0 \
         UNION SELECT r.id FROM gone CROSS JOIN responses r WHERE r.tenant = $1 AND r.previous = gone.id) \
     SELECT id FROM gone) RETURNING id, status, created_ms";
/// What was just deleted is found by the indexes of what is to be purged, which SQLite uses for what says their conditions in the
/// same words.
const DELETE_MESSAGES: &str = "UPDATE messages SET deleted_ms = $2 WHERE tenant = $1 AND deleted_ms = 0 \
     AND response IN (SELECT r.id FROM responses r JOIN conversations c ON c.tenant = r.tenant \
         AND c.id = r.conversation WHERE r.tenant = $1 AND r.deleted_ms = $2 AND r.deleted_ms > 0 \
         AND c.listed = 0)";
const DELETE_SUMMARIES: &str = "UPDATE summaries SET deleted_ms = $2 WHERE tenant = $1 AND deleted_ms = 0 \
     AND (conversation, message) IN (SELECT m.conversation, m.id FROM messages m \
         WHERE m.tenant = $1 AND m.deleted_ms = $2 AND m.deleted_ms > 0 AND m.body <> '')";

impl Conversations {
    /// Writes a turn, unless what it belongs to was deleted meanwhile, or another gateway makes it by now. It may be asked again
    /// after a failure, also of the commit's acknowledgement alone: what was written is so once.
    pub async fn put(&self, tenant: &TenantId, turn: &Turn) -> Result<Put, StoreError> {
        let mut tx = self.db.write().await?;
        let put = self.put_in(&mut tx, tenant, turn).await?;
        if put == Put::Written {
            tx.commit().await?;
        }
        Ok(put)
    }

    /// Whether [`Self::put`] would write a turn now. It is written and taken back at once: nobody finds it, and no file has it.
    pub async fn try_put(&self, tenant: &TenantId, turn: &Turn) -> Result<Put, StoreError> {
        let mut tx = self.db.write().await?;
        let put = self.put_in(&mut tx, tenant, turn).await?;
        tx.rollback().await?;
        Ok(put)
    }

    async fn put_in(&self, tx: &mut Tx, tenant: &TenantId, turn: &Turn) -> Result<Put, StoreError> {
        if !turn.listed {
            make_hidden(tx, tenant, &turn.conversation).await?;
        }
        let Some(current) = lock(tx, tenant, &turn.conversation).await? else { return Ok(Put::Deleted) };
        if self.has_written(tx, tenant, &turn.response).await? {
            return Ok(Put::Written);
        }
        // Who deletes what it goes on from waits until it is there, or was here before.
        if !turn.response.previous.is_empty() && !is_there(tx, tenant, &turn.response.previous).await? {
            return Ok(Put::Deleted);
        }
        let last = turn.output.last().or(turn.input.last());
        let leaf = last.map_or(turn.at.parent(&current), |message| &message.id);
        if !self.upsert(tx, tenant, &turn.conversation, leaf, &turn.response).await? {
            return not_written(tx, tenant, &turn.response.id).await;
        }
        let messages: Vec<(Origin, &NewMessage)> = (turn.input.iter().map(|message| (Origin::Input, message)))
            .chain(turn.output.iter().map(|message| (Origin::Output, message)))
            .collect();
        let at = (&turn.conversation, &turn.at, &turn.response.id);
        let appended = append_of(tx, tenant, at.0, at.1, at.2, &messages).await?;
        Ok(if appended.is_some() { Put::Written } else { Put::Deleted })
    }

    /// Whether this gateway has written just this before.
    async fn has_written(&self, tx: &mut Tx, tenant: &TenantId, response: &NewResponse) -> Result<bool, StoreError> {
        const FIND: &str = "SELECT id FROM responses WHERE tenant = $1 AND id = $2 AND deleted_ms = 0 \
             AND gateway = $3 AND status = $4 AND body = $5";
        let query = sqlx::query(FIND).bind(tenant.as_str()).bind(response.id.clone()).bind(&*self.gateway);
        let query = query.bind(response.status.clone()).bind(response.body.clone());
        Ok(query.fetch_optional(&mut **tx).await?.is_some())
    }

    /// False where it was deleted, or is another's to write.
    async fn upsert(
        &self,
        tx: &mut Tx,
        tenant: &TenantId,
        conversation: &str,
        leaf: &str,
        response: &NewResponse,
    ) -> Result<bool, StoreError> {
        const UPSERT: &str = "INSERT INTO responses \
             (tenant, id, conversation, previous, leaf, status, body, created_ms, deleted_ms, gateway, \
             generation, input_tokens, output_tokens) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0, $9, $10, $11, $12) \
             ON CONFLICT (tenant, id) DO UPDATE \
             SET leaf = excluded.leaf, status = excluded.status, body = excluded.body, generation = excluded.generation, \
             input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens \
             WHERE responses.deleted_ms = 0 AND responses.gateway = excluded.gateway";
        let (generation, input, output) =
            response.used.as_ref().map_or(("", 0, 0), |used| (&used.generation, used.input_tokens, used.output_tokens));
        let done = sqlx::query(UPSERT)
            .bind(tenant.as_str())
            .bind(response.id.clone())
            .bind(conversation)
            .bind(response.previous.clone())
            .bind(leaf)
            .bind(response.status.clone())
            .bind(response.body.clone())
            .bind(now_ms())
            .bind(&*self.gateway)
            .bind(generation)
            .bind(signed(input))
            .bind(signed(output))
            .execute(&mut **tx)
            .await?;
        Ok(done.rows_affected() > 0)
    }

    /// One response.
    pub async fn response(&self, tenant: &TenantId, id: &str) -> Result<Option<StoredResponse>, StoreError> {
        const ONE: &str = "SELECT conversation, leaf, status, body, created_ms FROM responses \
             WHERE tenant = $1 AND id = $2 AND deleted_ms = 0";
        let row = sqlx::query(ONE).bind(tenant.as_str()).bind(id).fetch_optional(self.db.pool()).await?;
        row.as_ref().map(read).transpose()
    }

    /// Deletes a response, those that go on from it, and their messages where no conversation of a caller's has them.
    /// Gives these responses: none where there was no such one.
    pub async fn delete_response(&self, tenant: &TenantId, id: &str) -> Result<Vec<Deleted>, StoreError> {
        let Some(found) = self.response(tenant, id).await? else { return Ok(Vec::new()) };
        let mut tx = self.db.write().await?;
        // Those that go on from it are in the same conversation: one that is being written now is seen below, or sees that this
        // one is gone.
        if lock(&mut tx, tenant, &found.conversation).await?.is_none() {
            return Ok(Vec::new());
        }
        let now = now_ms();
        let query = sqlx::query(DELETE).bind(tenant.as_str()).bind(id).bind(now);
        let responses = deleted(&query.fetch_all(&mut *tx).await?)?;
        if responses.is_empty() {
            return Ok(responses);
        }
        for statement in [DELETE_MESSAGES, DELETE_SUMMARIES] {
            sqlx::query(statement).bind(tenant.as_str()).bind(now).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(responses)
    }

    /// Responses that never ended, and whose gateway is no more: neither this one, nor one that says that it is there
    /// ([`Self::stay`]). Gives them tenant by tenant, with their objects, for whoever can say on the wire that they failed.
    pub async fn abandoned(&self) -> Result<Vec<(TenantId, String, String)>, StoreError> {
        const ABANDONED: &str = concat!(
            "SELECT tenant, id, body FROM responses WHERE deleted_ms = 0 AND ",
            left_behind!("$1", "$2"),
            " LIMIT 1000"
        );
        let query = sqlx::query(ABANDONED).bind(&*self.gateway).bind(now_ms());
        let rows = query.fetch_all(self.db.pool()).await?;
        let one = |row: &AnyRow| {
            let tenant: String = row.try_get("tenant")?;
            Ok((TenantId::new(tenant), row.try_get("id")?, row.try_get("body")?))
        };
        rows.iter().map(one).collect()
    }

    /// Leaves a response of this gateway to whoever closes what was abandoned, where it has not ended.
    pub async fn abandon(&self, tenant: &TenantId, id: &str) -> Result<(), StoreError> {
        const ABANDON: &str = "UPDATE responses SET gateway = '' WHERE tenant = $1 AND id = $2 AND gateway = $3 \
             AND status IN ('queued', 'in_progress')";
        let query = sqlx::query(ABANDON).bind(tenant.as_str()).bind(id).bind(&*self.gateway);
        query.execute(self.db.pool()).await?;
        Ok(())
    }

    /// Says what became of a response that was abandoned; whether it still was, and nobody makes it anew.
    pub async fn close_response(
        &self,
        tenant: &TenantId,
        id: &str,
        status: &str,
        body: &str,
    ) -> Result<bool, StoreError> {
        const CLOSE: &str = concat!(
            "UPDATE responses SET status = $3, body = $4 WHERE tenant = $1 AND id = $2 AND ",
            left_behind!("$5", "$6")
        );
        let query = sqlx::query(CLOSE).bind(tenant.as_str()).bind(id).bind(status).bind(body);
        let closed = query.bind(&*self.gateway).bind(now_ms()).execute(self.db.pool()).await?;
        Ok(closed.rows_affected() > 0)
    }
}

async fn is_there(tx: &mut Tx, tenant: &TenantId, id: &str) -> Result<bool, StoreError> {
    const FIND: &str = "SELECT id FROM responses WHERE tenant = $1 AND id = $2 AND deleted_ms = 0";
    Ok(sqlx::query(FIND).bind(tenant.as_str()).bind(id).fetch_optional(&mut **tx).await?.is_some())
}

/// Why a response that is there could not be written.
async fn not_written(tx: &mut Tx, tenant: &TenantId, id: &str) -> Result<Put, StoreError> {
    const DELETED: &str = "SELECT deleted_ms FROM responses WHERE tenant = $1 AND id = $2";
    let row = sqlx::query(DELETED).bind(tenant.as_str()).bind(id).fetch_one(&mut **tx).await?;
    Ok(if row.try_get::<i64, _>("deleted_ms")? == 0 { Put::Taken } else { Put::Deleted })
}

async fn make_hidden(tx: &mut Tx, tenant: &TenantId, id: &str) -> Result<(), StoreError> {
    const FIND: &str = "SELECT id FROM conversations WHERE tenant = $1 AND id = $2";
    if sqlx::query(FIND).bind(tenant.as_str()).bind(id).fetch_optional(&mut **tx).await?.is_some() {
        return Ok(());
    }
    let made = Conversation {
        id: id.to_owned(),
        title: String::new(),
        metadata: "{}".into(),
        leaf: String::new(),
        created_ms: now_ms(),
    };
    super::insert(tx, tenant, &made, false).await
}

/// Whether a response of this status is still being made.
fn is_running(status: &str) -> bool {
    matches!(status, "queued" | "in_progress")
}

pub(super) fn deleted(rows: &[AnyRow]) -> Result<Vec<Deleted>, StoreError> {
    let one = |row: &AnyRow| {
        let is_running = is_running(&row.try_get::<String, _>("status")?);
        Ok(Deleted { id: row.try_get("id")?, is_running, created_ms: row.try_get("created_ms")? })
    };
    rows.iter().map(one).collect()
}

fn read(row: &AnyRow) -> Result<StoredResponse, StoreError> {
    Ok(StoredResponse {
        conversation: row.try_get("conversation")?,
        leaf: row.try_get("leaf")?,
        status: row.try_get("status")?,
        body: row.try_get("body")?,
        created_ms: row.try_get("created_ms")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Place};

    #[tokio::test]
    async fn a_response_is_deleted_without_a_look_at_what_others_have() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        for statement in [DELETE, DELETE_MESSAGES, DELETE_SUMMARIES] {
            db.assert_finds_own(statement, &["SCAN gone", "_to_purge (deleted_ms=?)"]).await;
        }
    }
}
