//! Conversations: a tree of messages each, written behind the stream and read before it.
//!
//! Invariants:
//! - every statement names the tenant; another's conversation is as one that never was;
//! - the current leaf moves only from the message that its new branch follows, so that of two writers at once one goes
//!   on and the other makes a branch, and nothing is lost;
//! - what was deleted is not read from that moment on, and is gone from the files once it was purged.
//!
//! Parts: `messages.rs` (the tree), `responses.rs` (what answered), `makers.rs` (who answers), `summaries.rs`, `titles.rs`, `feedback.rs`, `archived.rs`, `purge.rs`.

mod archived;
mod feedback;
mod idempotency;
mod makers;
mod messages;
mod purge;
mod responses;
mod summaries;
mod titles;

pub use feedback::Feedback;
pub use idempotency::Claim;
pub use makers::Maker;
pub use messages::{At, Made, MessagePage, MessageStatus, NewMessage, Origin, StoredMessage};
pub use purge::Purged;
pub use responses::{Deleted, NewResponse, Put, StoredResponse, Turn, Used};
pub use summaries::StoredSummary;

use crate::db::Db;
use crate::error::StoreError;
use crate::usage::signed;
use sqlx::Row;
use sqlx::any::AnyRow;
use std::sync::Arc;
use std::time::Duration;
use tidegate_turns::Owner;
use tidegate_types::TenantId;
use tidegate_types::clock::{millis, unix_ms};

/// The conversations of all tenants.
#[derive(Clone, Debug)]
pub struct Conversations {
    db: Db,
    /// Who writes.
    gateway: Arc<str>,
}

/// One conversation, without its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// Names it within its tenant.
    pub id: String,
    /// Empty where none was given.
    pub title: String,
    /// A JSON object, as the caller gave it.
    pub metadata: String,
    /// The message that the next one follows; empty where there is none.
    pub leaf: String,
    /// Milliseconds since 1970.
    pub created_ms: i64,
}

/// A part of a list, by what it follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The id that the page begins behind; empty for the start.
    pub after: String,
    /// How many.
    pub limit: u32,
    /// Which way.
    pub order: Order,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Oldest first.
    Ascending,
    /// Newest first.
    Descending,
}

/// Makes a statement of the columns that [`Conversation`] is read from, and what follows them.
macro_rules! select {
    ($rest:literal) => {
        concat!("SELECT id, title, metadata, leaf, created_ms FROM conversations ", $rest)
    };
}

const LIST_NEWEST: &str = select!(
    "WHERE tenant = $1 AND listed = 1 AND deleted_ms = 0 \
     AND ($2 = '' OR (created_ms, id) < (SELECT c.created_ms, c.id FROM conversations c \
         WHERE c.tenant = $1 AND c.id = $2)) \
     AND (folded LIKE $3 ESCAPE '!' OR EXISTS (SELECT 1 FROM messages m WHERE m.tenant = $1 \
         AND m.conversation = conversations.id AND m.deleted_ms = 0 AND m.folded LIKE $3 ESCAPE '!')) \
     ORDER BY created_ms DESC, id DESC LIMIT $4"
);
const LIST_OLDEST: &str = select!(
    "WHERE tenant = $1 AND listed = 1 AND deleted_ms = 0 \
     AND ($2 = '' OR (created_ms, id) > (SELECT c.created_ms, c.id FROM conversations c \
         WHERE c.tenant = $1 AND c.id = $2)) \
     AND (folded LIKE $3 ESCAPE '!' OR EXISTS (SELECT 1 FROM messages m WHERE m.tenant = $1 \
         AND m.conversation = conversations.id AND m.deleted_ms = 0 AND m.folded LIKE $3 ESCAPE '!')) \
     ORDER BY created_ms, id LIMIT $4"
);

impl Conversations {
    /// Those of this database, where nobody else writes to it.
    pub fn new(db: Db) -> Self {
        Self { db, gateway: "".into() }
    }

    /// The same, written by the gateway of this name, which no other has.
    pub fn of_gateway(db: Db, name: &str) -> Self {
        Self { db, gateway: name.into() }
    }

    /// Reads much, as [`Db::in_turn`] does.
    pub async fn in_turn<T, F>(&self, owner: &Owner, read: impl FnOnce(Self) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.db.in_turn(owner, read(self.clone())).await
    }

    /// Makes a conversation with its first messages.
    pub async fn create(
        &self,
        tenant: &TenantId,
        made: &Conversation,
        messages: &[NewMessage],
    ) -> Result<(), StoreError> {
        let mut tx = self.db.write().await?;
        insert(&mut tx, tenant, made, true).await?;
        messages::append(&mut tx, tenant, &made.id, &At::Leaf, messages).await?;
        Ok(tx.commit().await?)
    }

    /// One conversation.
    pub async fn get(&self, tenant: &TenantId, id: &str) -> Result<Option<Conversation>, StoreError> {
        const ONE: &str = select!("WHERE tenant = $1 AND id = $2 AND listed = 1 AND deleted_ms = 0");
        let row = sqlx::query(ONE).bind(tenant.as_str()).bind(id).fetch_optional(self.db.pool()).await?;
        row.as_ref().map(read).transpose()
    }

    /// Changes what is given, all of it or nothing; says what there is then.
    pub async fn update(
        &self,
        tenant: &TenantId,
        id: &str,
        title: Option<&str>,
        metadata: Option<&str>,
    ) -> Result<Option<Conversation>, StoreError> {
        const TITLE: &str = "UPDATE conversations SET title = $3, folded = $4, titled = $5 \
             WHERE tenant = $1 AND id = $2 AND listed = 1 AND deleted_ms = 0";
        const METADATA: &str = "UPDATE conversations SET metadata = $3 \
             WHERE tenant = $1 AND id = $2 AND listed = 1 AND deleted_ms = 0";
        let mut tx = self.db.write().await?;
        if let Some(title) = title {
            let title = clean(title);
            let query = sqlx::query(TITLE).bind(tenant.as_str()).bind(id).bind(title.clone());
            query.bind(title.to_lowercase()).bind(titles::BY_CALLER).execute(&mut *tx).await?;
        }
        if let Some(metadata) = metadata {
            sqlx::query(METADATA).bind(tenant.as_str()).bind(id).bind(metadata).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        self.get(tenant, id).await
    }

    /// Deletes a conversation with everything in it: nobody reads it from now on, and a purge removes it. Gives its
    /// responses that went with it, or nothing where there was no conversation.
    pub async fn delete(&self, tenant: &TenantId, id: &str) -> Result<Option<Vec<Deleted>>, StoreError> {
        const CONVERSATION: &str = "UPDATE conversations SET deleted_ms = $3 \
             WHERE tenant = $1 AND id = $2 AND listed = 1 AND deleted_ms = 0";
        const RESPONSES: &str = "UPDATE responses SET deleted_ms = $3 \
             WHERE tenant = $1 AND conversation = $2 AND deleted_ms = 0 RETURNING id, status, created_ms";
        let mut tx = self.db.write().await?;
        let bind = |statement| sqlx::query(statement).bind(tenant.as_str()).bind(id).bind(now_ms());
        if bind(CONVERSATION).execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(None);
        }
        let responses = responses::deleted(&bind(RESPONSES).fetch_all(&mut *tx).await?)?;
        tx.commit().await?;
        Ok(Some(responses))
    }

    /// Whether a page of the tenant's conversations can begin behind this one, be it there or deleted since.
    pub async fn had(&self, tenant: &TenantId, id: &str) -> Result<bool, StoreError> {
        const FIND: &str = "SELECT id FROM conversations WHERE tenant = $1 AND id = $2";
        let query = sqlx::query(FIND).bind(tenant.as_str()).bind(id);
        Ok(query.fetch_optional(self.db.pool()).await?.is_some())
    }

    /// The tenant's conversations; with `words`, those that have them in a message or the title, whatever the case.
    pub async fn list(&self, tenant: &TenantId, page: &Page, words: &str) -> Result<Vec<Conversation>, StoreError> {
        let statement = if page.order == Order::Descending { LIST_NEWEST } else { LIST_OLDEST };
        let query = sqlx::query(statement).bind(tenant.as_str()).bind(page.after.clone()).bind(pattern(words));
        query.bind(i64::from(page.limit)).fetch_all(self.db.pool()).await?.iter().map(read).collect()
    }
}

pub(crate) type Tx = sqlx::Transaction<'static, sqlx::Any>;

/// One that is not listed holds the messages of responses that name each other.
async fn insert(tx: &mut Tx, tenant: &TenantId, made: &Conversation, listed: bool) -> Result<(), StoreError> {
    const INSERT: &str = "INSERT INTO conversations \
         (tenant, id, listed, title, folded, metadata, leaf, version, created_ms, deleted_ms, titled) \
         VALUES ($1, $2, $3, $4, $5, $6, '', 0, $7, 0, $8)";
    let title = clean(&made.title);
    sqlx::query(INSERT)
        .bind(tenant.as_str())
        .bind(made.id.clone())
        .bind(i64::from(listed))
        .bind(title.clone())
        .bind(title.to_lowercase())
        .bind(made.metadata.clone())
        .bind(made.created_ms)
        .bind(if title.is_empty() { 0 } else { titles::BY_CALLER })
        .execute(&mut **tx)
        .await?;
    Ok(())
}

fn read(row: &AnyRow) -> Result<Conversation, StoreError> {
    Ok(Conversation {
        id: row.try_get("id")?,
        title: row.try_get("title")?,
        metadata: row.try_get("metadata")?,
        leaf: row.try_get("leaf")?,
        created_ms: row.try_get("created_ms")?,
    })
}

/// Now, as conversations are dated: in milliseconds since 1970.
pub fn now_ms() -> i64 {
    signed(unix_ms())
}

/// So long ago, in the same.
pub fn ago_ms(time: Duration) -> i64 {
    now_ms().saturating_sub(signed(millis(time)))
}

/// Postgres has no text with a zero in it.
pub(crate) fn clean(text: &str) -> String {
    text.replace('\0', "")
}

/// For `LIKE` with `ESCAPE '!'`: finds `words` anywhere.
fn pattern(words: &str) -> String {
    let mut pattern = String::from("%");
    for c in clean(words).to_lowercase().chars() {
        if matches!(c, '!' | '%' | '_') {
            pattern.push('!');
        }
        pattern.push(c);
    }
    pattern.push('%');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;

    #[tokio::test]
    async fn a_tenants_conversations_are_searched_without_a_look_at_what_others_have() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        for statement in [LIST_NEWEST, LIST_OLDEST] {
            db.assert_finds_own(statement, &["conversations_by_age (tenant=?)"]).await;
        }
    }
}
