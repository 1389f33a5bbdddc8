//! Who makes an answer that several gateways were asked for: the first that says so here, for as long as it is there.
//!
//! Invariant: of an answer that was begun under a name one gateway writes the end.

use super::messages::lock;
use super::{Conversations, Turn, Tx, now_ms};
use crate::error::StoreError;
use std::time::Duration;
use tidegate_types::TenantId;

/// Who makes an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// This gateway, from now on.
    This,
    /// Another, or it was made before.
    Other,
    /// Nobody: its conversation, or the message that it answers, is not there.
    Nobody,
}

impl Conversations {
    /// Says that this gateway is there for so long; those that have not said so in time are no more.
    pub async fn stay(&self, time: Duration) -> Result<(), StoreError> {
        const STAY: &str = "INSERT INTO gateways (name, until_ms) VALUES ($1, $2) \
             ON CONFLICT (name) DO UPDATE SET until_ms = excluded.until_ms";
        const OLD: &str = "DELETE FROM gateways WHERE until_ms < $1";
        let now = now_ms();
        let until = now.saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
        sqlx::query(STAY).bind(&*self.gateway).bind(until).execute(self.db.pool()).await?;
        sqlx::query(OLD).bind(now).execute(self.db.pool()).await?;
        Ok(())
    }

    /// Begins the answer of a turn to the message that it follows in a caller's conversation, unless it was made, or a
    /// gateway that is there makes it. What is asked again goes to the one that has begun it.
    pub async fn begin(&self, tenant: &TenantId, turn: &Turn) -> Result<Maker, StoreError> {
        const BEGIN: &str = "INSERT INTO responses \
             (tenant, id, conversation, previous, leaf, answers, status, body, created_ms, deleted_ms, gateway) \
             VALUES ($1, $2, $3, $4, $5, $5, $6, $7, $8, 0, $9) \
             ON CONFLICT (tenant, id) DO UPDATE \
             SET body = excluded.body, created_ms = excluded.created_ms, gateway = excluded.gateway \
             WHERE responses.deleted_ms = 0 AND responses.status IN ('queued', 'in_progress') \
             AND (responses.gateway = excluded.gateway OR NOT EXISTS (SELECT 1 FROM gateways g \
                 WHERE g.name = responses.gateway AND g.until_ms > excluded.created_ms))";
        let mut tx = self.db.write().await?;
        let Some(current) = lock(&mut tx, tenant, &turn.conversation).await? else { return Ok(Maker::Nobody) };
        let answers = turn.at.parent(&current).to_owned();
        if !answers.is_empty() && !is_there(&mut tx, tenant, &turn.conversation, &answers).await? {
            return Ok(Maker::Nobody);
        }
        let begun = sqlx::query(BEGIN)
            .bind(tenant.as_str())
            .bind(turn.response.id.clone())
            .bind(turn.conversation.clone())
            .bind(turn.response.previous.clone())
            .bind(answers)
            .bind(turn.response.status.clone())
            .bind(turn.response.body.clone())
            .bind(now_ms())
            .bind(&*self.gateway)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(if begun.rows_affected() > 0 { Maker::This } else { Maker::Other })
    }
}

async fn is_there(tx: &mut Tx, tenant: &TenantId, conversation: &str, id: &str) -> Result<bool, StoreError> {
    const FIND: &str = "SELECT id FROM messages WHERE tenant = $1 AND conversation = $2 AND id = $3 AND deleted_ms = 0";
    let query = sqlx::query(FIND).bind(tenant.as_str()).bind(conversation).bind(id);
    Ok(query.fetch_optional(&mut **tx).await?.is_some())
}
