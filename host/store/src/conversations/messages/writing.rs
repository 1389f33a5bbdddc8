//! Writing messages, and what can be changed of them.

use super::super::responses::{Deleted, deleted};
use super::super::summaries::forget;
use super::super::titles::unname;
use super::super::{Conversations, Tx, clean, now_ms};
use super::{At, Body, NewMessage, Origin};
use crate::error::StoreError;
use sqlx::Row;
use tidegate_types::{Report, TenantId, Usage};

impl Conversations {
    /// Writes messages behind each other; gives their ids, or nothing where there is no such place. A message whose
    /// `client_id` is there already is not written again, and nothing that follows it.
    pub async fn append(
        &self,
        tenant: &TenantId,
        conversation: &str,
        at: &At,
        messages: &[NewMessage],
    ) -> Result<Option<Vec<String>>, StoreError> {
        let mut tx = self.db.write().await?;
        let written = append(&mut tx, tenant, conversation, at, messages).await?;
        tx.commit().await?;
        Ok(written)
    }

    /// Deletes one message, the answers to it that are being made, what sums it up, and the title that a model found in what
    /// was said; what follows it stays. Of the object of its response `without` leaves what there is without the message.
    /// Gives the responses that went with it, or nothing where there was no such message.
    pub async fn delete_message(
        &self,
        tenant: &TenantId,
        conversation: &str,
        id: &str,
        without: impl Fn(&str) -> String + Send,
    ) -> Result<Option<Vec<Deleted>>, StoreError> {
        const ANSWERS: &str = "UPDATE responses SET deleted_ms = $4 WHERE tenant = $1 AND conversation = $2 \
             AND answers = $3 AND deleted_ms = 0 AND status IN ('queued', 'in_progress') \
             RETURNING id, status, created_ms";
        const DELETE: &str = "UPDATE messages SET deleted_ms = $4 \
             WHERE tenant = $1 AND conversation = $2 AND id = $3 AND deleted_ms = 0";
        let mut tx = self.db.write().await?;
        // A summary of it that is being written waits here, or is seen below.
        lock(&mut tx, tenant, conversation).await?;
        let bind = |statement| sqlx::query(statement).bind(tenant.as_str()).bind(conversation).bind(id).bind(now_ms());
        if bind(DELETE).execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(None);
        }
        let answers = deleted(&bind(ANSWERS).fetch_all(&mut *tx).await?)?;
        forget(&mut tx, tenant, conversation, id).await?;
        unname(&mut tx, tenant, conversation).await?;
        leave_out(&mut tx, tenant, conversation, id, without).await?;
        tx.commit().await?;
        Ok(Some(answers))
    }

    /// Keeps a message in the context, or no longer. Says whether there is one.
    pub async fn pin(&self, tenant: &TenantId, conversation: &str, id: &str, pinned: bool) -> Result<bool, StoreError> {
        const PIN: &str = "UPDATE messages SET pinned = $4 \
             WHERE tenant = $1 AND conversation = $2 AND id = $3 AND deleted_ms = 0";
        let query = sqlx::query(PIN).bind(tenant.as_str()).bind(conversation).bind(id).bind(i64::from(pinned));
        Ok(query.execute(self.db.pool()).await?.rows_affected() > 0)
    }

    /// Makes the branch that ends with `leaf` the current one. Says whether there is such a message.
    pub async fn select(&self, tenant: &TenantId, conversation: &str, leaf: &str) -> Result<bool, StoreError> {
        const SELECT: &str = "UPDATE conversations SET leaf = $3, version = version + 1 \
             WHERE tenant = $1 AND id = $2 AND deleted_ms = 0 AND EXISTS (SELECT 1 FROM messages m \
                 WHERE m.tenant = $1 AND m.conversation = $2 AND m.id = $3 AND m.deleted_ms = 0)";
        let query = sqlx::query(SELECT).bind(tenant.as_str()).bind(conversation).bind(leaf);
        Ok(query.execute(self.db.pool()).await?.rows_affected() > 0)
    }
}

/// Rewrites the object of the response that a message is the output of.
async fn leave_out(
    tx: &mut Tx,
    tenant: &TenantId,
    conversation: &str,
    id: &str,
    without: impl Fn(&str) -> String + Send,
) -> Result<(), StoreError> {
    const FIND: &str = "SELECT r.id, r.body FROM messages m JOIN responses r ON r.tenant = m.tenant AND r.id = m.response \
         WHERE m.tenant = $1 AND m.conversation = $2 AND m.id = $3 AND m.origin = $4";
    const REWRITE: &str = "UPDATE responses SET body = $3 WHERE tenant = $1 AND id = $2";
    let query = sqlx::query(FIND).bind(tenant.as_str()).bind(conversation).bind(id).bind(Origin::Output.as_str());
    if let Some(row) = query.fetch_optional(&mut **tx).await? {
        let (response, body): (String, String) = (row.try_get("id")?, row.try_get("body")?);
        let query = sqlx::query(REWRITE).bind(tenant.as_str()).bind(response).bind(without(&body));
        query.execute(&mut **tx).await?;
    }
    Ok(())
}

/// As [`Conversations::append`], within a transaction, for messages of no response.
pub(in super::super) async fn append(
    tx: &mut Tx,
    tenant: &TenantId,
    conversation: &str,
    at: &At,
    messages: &[NewMessage],
) -> Result<Option<Vec<String>>, StoreError> {
    let all: Vec<(Origin, &NewMessage)> = messages.iter().map(|message| (Origin::Added, message)).collect();
    append_of(tx, tenant, conversation, at, "", &all).await
}

/// Writes messages of a response.
pub(in super::super) async fn append_of(
    tx: &mut Tx,
    tenant: &TenantId,
    conversation: &str,
    at: &At,
    response: &str,
    messages: &[(Origin, &NewMessage)],
) -> Result<Option<Vec<String>>, StoreError> {
    // First of all: who writes to this conversation waits here for those before.
    let Some(leaf) = lock(tx, tenant, conversation).await? else { return Ok(None) };
    let first = at.parent(&leaf).to_owned();
    if !first.is_empty() && !exists(tx, tenant, conversation, &first).await? {
        return Ok(None);
    }
    let mut place = Place::behind(tx, tenant, conversation, &first).await?;
    let mut ids = Vec::with_capacity(messages.len());
    for (origin, new) in messages {
        if let Some(known) = known(tx, tenant, conversation, &new.client_id).await? {
            ids.push(known);
            return Ok(Some(ids));
        }
        write(tx, tenant, conversation, &place, response, *origin, new).await?;
        place = place.next(&new.id);
        ids.push(new.id.clone());
    }
    let parent = place.parent;
    if parent != first && (first == leaf || matches!(at, At::Branch(_))) {
        const MOVE: &str = "UPDATE conversations SET leaf = $3 WHERE tenant = $1 AND id = $2";
        sqlx::query(MOVE).bind(tenant.as_str()).bind(conversation).bind(parent).execute(&mut **tx).await?;
    }
    Ok(Some(ids))
}

/// Holds the conversation's row until the transaction ends; gives its leaf.
pub(in super::super) async fn lock(
    tx: &mut Tx,
    tenant: &TenantId,
    conversation: &str,
) -> Result<Option<String>, StoreError> {
    const LOCK: &str =
        "UPDATE conversations SET version = version + 1 WHERE tenant = $1 AND id = $2 AND deleted_ms = 0";
    const LEAF: &str = "SELECT leaf FROM conversations WHERE tenant = $1 AND id = $2";
    let locked = sqlx::query(LOCK).bind(tenant.as_str()).bind(conversation).execute(&mut **tx).await?;
    if locked.rows_affected() == 0 {
        return Ok(None);
    }
    let row = sqlx::query(LEAF).bind(tenant.as_str()).bind(conversation).fetch_one(&mut **tx).await?;
    Ok(Some(row.try_get("leaf")?))
}

async fn exists(tx: &mut Tx, tenant: &TenantId, conversation: &str, id: &str) -> Result<bool, StoreError> {
    const FIND: &str = "SELECT id FROM messages WHERE tenant = $1 AND conversation = $2 AND id = $3";
    let query = sqlx::query(FIND).bind(tenant.as_str()).bind(conversation).bind(id);
    Ok(query.fetch_optional(&mut **tx).await?.is_some())
}

async fn known(
    tx: &mut Tx,
    tenant: &TenantId,
    conversation: &str,
    client_id: &str,
) -> Result<Option<String>, StoreError> {
    const FIND: &str = "SELECT id FROM messages WHERE tenant = $1 AND conversation = $2 AND client_id = $3";
    if client_id.is_empty() {
        return Ok(None);
    }
    let query = sqlx::query(FIND).bind(tenant.as_str()).bind(conversation).bind(client_id);
    Ok(query.fetch_optional(&mut **tx).await?.map(|row| row.try_get("id")).transpose()?)
}

/// Where a message goes. Counted once for all that are written together: nobody else writes there while the conversation
/// is locked, and counting again for each would hold up everybody's writes for as long as a long conversation takes.
struct Place {
    parent: String,
    /// Messages that follow the same one.
    sibling: i64,
    /// Messages of the conversation.
    position: i64,
}

impl Place {
    async fn behind(tx: &mut Tx, tenant: &TenantId, conversation: &str, parent: &str) -> Result<Self, StoreError> {
        const COUNT: &str = "SELECT \
             (SELECT COUNT(*) FROM messages WHERE tenant = $1 AND conversation = $2 AND parent = $3), \
             (SELECT COUNT(*) FROM messages WHERE tenant = $1 AND conversation = $2)";
        let query = sqlx::query(COUNT).bind(tenant.as_str()).bind(conversation).bind(parent);
        let row = query.fetch_one(&mut **tx).await?;
        Ok(Self { parent: parent.to_owned(), sibling: row.try_get(0)?, position: row.try_get(1)? })
    }

    /// Behind the message `id`, which was written here just now.
    fn next(self, id: &str) -> Self {
        Self { parent: id.to_owned(), sibling: 0, position: self.position + 1 }
    }
}

fn report_text(report: &Report) -> Result<String, StoreError> {
    if *report == Report::default() {
        return Ok(String::new());
    }
    serde_json::to_string(report).map_err(StoreError::Body)
}

async fn write(
    tx: &mut Tx,
    tenant: &TenantId,
    conversation: &str,
    place: &Place,
    response: &str,
    origin: Origin,
    new: &NewMessage,
) -> Result<(), StoreError> {
    const INSERT: &str = "INSERT INTO messages (tenant, conversation, id, parent, sibling, position, client_id, \
         response, origin, body, folded, status, pinned, model, finish, input_tokens, cached_tokens, output_tokens, \
         reasoning_tokens, report, created_ms, deleted_ms) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 0, $13, $14, $15, $16, $17, $18, $19, $20, 0)";
    let Usage { input_tokens, cached_tokens, output_tokens, reasoning_tokens } = new.made.usage;
    sqlx::query(INSERT)
        .bind(tenant.as_str())
        .bind(conversation)
        .bind(new.id.clone())
        .bind(place.parent.clone())
        .bind(place.sibling)
        .bind(place.position)
        .bind(new.client_id.clone())
        .bind(response)
        .bind(origin.as_str())
        .bind(Body::text_of(&new.message)?)
        .bind(clean(&new.message.joined_text()).to_lowercase())
        .bind(new.status.as_str())
        .bind(new.made.model.clone())
        .bind(new.made.finish.clone())
        .bind(input_tokens as i64)
        .bind(cached_tokens as i64)
        .bind(output_tokens as i64)
        .bind(reasoning_tokens.map(|count| count as i64))
        .bind(report_text(&new.made.report)?)
        .bind(now_ms())
        .execute(&mut **tx)
        .await?;
    Ok(())
}
