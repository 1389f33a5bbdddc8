//! What people think of a message.

use super::{Conversations, clean, now_ms};
use crate::error::StoreError;
use sqlx::Row;
use sqlx::any::AnyRow;
use tidegate_types::TenantId;

/// One opinion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// The message.
    pub message: String,
    /// Whose key it came with; another of the same key takes its place.
    pub key_name: String,
    /// From -1, bad, to 1, good.
    pub rating: i64,
    /// Why, in words.
    pub reason: String,
    /// The message on another branch that its reader went to instead; empty for none.
    pub swipe: String,
    /// Milliseconds since 1970.
    pub created_ms: i64,
}

impl Conversations {
    /// Keeps an opinion of a message, in place of an earlier one of the same key. The message must be there.
    pub async fn rate(&self, tenant: &TenantId, conversation: &str, given: &Feedback) -> Result<(), StoreError> {
        const RATE: &str = "INSERT INTO feedback \
             (tenant, conversation, message, key_name, rating, reason, swipe, created_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) \
             ON CONFLICT (tenant, conversation, message, key_name) DO UPDATE \
             SET rating = excluded.rating, reason = excluded.reason, swipe = excluded.swipe, \
             created_ms = excluded.created_ms";
        sqlx::query(RATE)
            .bind(tenant.as_str())
            .bind(conversation)
            .bind(given.message.clone())
            .bind(given.key_name.clone())
            .bind(given.rating)
            .bind(clean(&given.reason))
            .bind(given.swipe.clone())
            .bind(now_ms())
            .execute(self.db.pool())
            .await?;
        Ok(())
    }

    /// All opinions in a conversation, of the messages that are there.
    pub async fn feedback(&self, tenant: &TenantId, conversation: &str) -> Result<Vec<Feedback>, StoreError> {
        const ALL: &str = "SELECT message, key_name, rating, reason, swipe, created_ms FROM feedback \
             WHERE tenant = $1 AND conversation = $2 AND EXISTS (SELECT 1 FROM messages m WHERE m.tenant = $1 \
                 AND m.conversation = $2 AND m.id = feedback.message AND m.deleted_ms = 0) ORDER BY created_ms, message";
        let rows = sqlx::query(ALL).bind(tenant.as_str()).bind(conversation).fetch_all(self.db.pool()).await?;
        rows.iter().map(read).collect()
    }
}

fn read(row: &AnyRow) -> Result<Feedback, StoreError> {
    Ok(Feedback {
        message: row.try_get("message")?,
        key_name: row.try_get("key_name")?,
        rating: row.try_get("rating")?,
        reason: row.try_get("reason")?,
        swipe: row.try_get("swipe")?,
        created_ms: row.try_get("created_ms")?,
    })
}
