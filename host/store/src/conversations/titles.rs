//! Who named a conversation: nobody yet, a model, or a caller, whose word is the last.

use super::messages::lock;
use super::{Conversations, Tx, clean};
use crate::error::StoreError;
use tidegate_types::TenantId;

/// In `titled`, beside 0 for a conversation without a name.
pub(super) const BY_MODEL: i64 = 1;
pub(super) const BY_CALLER: i64 = 2;

impl Conversations {
    /// Whether nobody has named the conversation yet.
    pub async fn is_unnamed(&self, tenant: &TenantId, id: &str) -> Result<bool, StoreError> {
        const UNNAMED: &str = "SELECT id FROM conversations \
             WHERE tenant = $1 AND id = $2 AND listed = 1 AND deleted_ms = 0 AND titled = 0";
        let query = sqlx::query(UNNAMED).bind(tenant.as_str()).bind(id);
        Ok(query.fetch_optional(self.db.pool()).await?.is_some())
    }

    /// Gives it the name that a model found in these messages, unless somebody was faster, or one of them was deleted
    /// meanwhile. Says whether it has it now.
    pub async fn name(
        &self,
        tenant: &TenantId,
        id: &str,
        title: &str,
        found_in: &[String],
    ) -> Result<bool, StoreError> {
        const IS_THERE: &str =
            "SELECT id FROM messages WHERE tenant = $1 AND conversation = $2 AND id = $3 AND deleted_ms = 0";
        const NAME: &str = "UPDATE conversations SET title = $3, folded = $4, titled = $5 \
             WHERE tenant = $1 AND id = $2 AND listed = 1 AND deleted_ms = 0 AND titled = 0";
        let mut tx = self.db.write().await?;
        // Who deletes one of them waits until it is named, and then takes the name away.
        if lock(&mut tx, tenant, id).await?.is_none() {
            return Ok(false);
        }
        for message in found_in {
            let query = sqlx::query(IS_THERE).bind(tenant.as_str()).bind(id).bind(message.as_str());
            if query.fetch_optional(&mut *tx).await?.is_none() {
                return Ok(false);
            }
        }
        let title = clean(title);
        let query = sqlx::query(NAME).bind(tenant.as_str()).bind(id).bind(title.clone());
        let query = query.bind(title.to_lowercase()).bind(BY_MODEL);
        let named = query.execute(&mut *tx).await?.rows_affected() > 0;
        tx.commit().await?;
        Ok(named)
    }
}

/// Takes a name away that a model found: it may say what is to be gone. The next answer is the chance of another.
pub(super) async fn unname(tx: &mut Tx, tenant: &TenantId, id: &str) -> Result<(), StoreError> {
    const UNNAME: &str = "UPDATE conversations SET title = '', folded = '', titled = 0 \
         WHERE tenant = $1 AND id = $2 AND titled = $3";
    sqlx::query(UNNAME).bind(tenant.as_str()).bind(id).bind(BY_MODEL).execute(&mut **tx).await?;
    Ok(())
}
