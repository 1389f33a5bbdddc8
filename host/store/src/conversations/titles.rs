//! Who named a conversation: nobody yet, a model, or a caller, whose word is the last.

use super::{Conversations, clean};
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

    /// Gives it the name that a model found, unless somebody was faster. Says whether it has it now.
    pub async fn name(&self, tenant: &TenantId, id: &str, title: &str) -> Result<bool, StoreError> {
        const NAME: &str = "UPDATE conversations SET title = $3, folded = $4, titled = $5 \
             WHERE tenant = $1 AND id = $2 AND listed = 1 AND deleted_ms = 0 AND titled = 0";
        let title = clean(title);
        let query = sqlx::query(NAME).bind(tenant.as_str()).bind(id).bind(title.clone());
        let query = query.bind(title.to_lowercase()).bind(BY_MODEL);
        Ok(query.execute(self.db.pool()).await?.rows_affected() > 0)
    }
}
