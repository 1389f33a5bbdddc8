//! Messages by their ids alone, whatever conversation they are in.

use super::super::Conversations;
use super::said;
use crate::error::StoreError;
use sqlx::Row;
use std::collections::{BTreeSet, HashMap};
use tidegate_types::{Message, TenantId};

/// Those of the ids `$2` that are there, with what they say as far as all of it together has no more than `$3` bytes. In the
/// order of its joins, which SQLite keeps to: an id is looked for in the index of ids. What is too much is not read.
macro_rules! referred {
    ($asked:literal) => {
        concat!(
            "WITH found AS (SELECT m.conversation, m.id, \
             SUM(OCTET_LENGTH(m.body)) OVER (ORDER BY m.id, m.conversation) AS held FROM ",
            $asked,
            " CROSS JOIN messages m CROSS JOIN conversations c \
             WHERE m.tenant = $1 AND m.id = asked.value AND m.deleted_ms = 0 \
             AND c.tenant = $1 AND c.id = m.conversation AND c.deleted_ms = 0) \
             SELECT m.id, CASE WHEN found.held <= $3 THEN m.body ELSE '' END AS body FROM found CROSS JOIN messages m \
             WHERE m.tenant = $1 AND m.conversation = found.conversation AND m.id = found.id"
        )
    };
}

const OF_SQLITE: &str = referred!("json_each($2) asked");
const OF_POSTGRES: &str = referred!("json_array_elements_text($2::json) asked (value)");

impl Conversations {
    /// The tenant's messages of these ids that are there; nothing where they have more than `max_bytes` together.
    pub async fn referred<'a>(
        &self,
        tenant: &TenantId,
        ids: impl IntoIterator<Item = &'a str>,
        max_bytes: u64,
    ) -> Result<Option<HashMap<String, Message>>, StoreError> {
        let ids: BTreeSet<&str> = ids.into_iter().collect();
        let ids = serde_json::to_string(&ids).map_err(StoreError::Body)?;
        let query = sqlx::query(self.db.either(OF_SQLITE, OF_POSTGRES)).bind(tenant.as_str()).bind(ids);
        let query = query.bind(i64::try_from(max_bytes).unwrap_or(i64::MAX));
        let mut found = HashMap::new();
        for row in query.fetch_all(self.db.pool()).await? {
            let (id, body): (String, String) = (row.try_get("id")?, row.try_get("body")?);
            if body.is_empty() {
                return Ok(None);
            }
            found.insert(id.clone(), said(id, &body)?);
        }
        Ok(Some(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Place};

    #[tokio::test]
    async fn messages_are_found_by_their_ids_without_a_look_at_others() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        db.assert_finds_own(OF_SQLITE, &["SCAN asked", "SCAN found", "SCAN (subquery"]).await;
        let plan = db.plan(OF_SQLITE).await;
        assert!(plan.iter().any(|step| step.contains("messages_by_id (tenant=? AND id=?)")), "{plan:#?}");
    }
}
