//! The tree: each message follows another, and those that follow the same one are siblings.

use super::{Conversations, Order, Page, Tx, clean, now_ms};
use crate::error::StoreError;
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;
use tidegate_types::{Message, Part, Role, TenantId, Usage};

/// Where messages go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// Behind the current leaf.
    Leaf,
    /// Behind this message, or as the first where it is empty. The leaf moves along if it was this one.
    Behind(String),
    /// As [`At::Behind`], and the new branch becomes the current one.
    Branch(String),
}

/// How far a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageStatus {
    /// Whole.
    Completed,
    /// It was cut off: cancelled, too long, or its writer failed.
    Incomplete,
}

/// Who brought a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A caller, on its own.
    Added,
    /// A caller, to be answered.
    Input,
    /// The model.
    Output,
}

/// What is known of how a message was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Who answered; empty for a message that no model made.
    pub model: String,
    /// Why it ended.
    pub finish: String,
    /// What the whole answer cost.
    pub usage: Usage,
}

/// A message to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct NewMessage {
    /// Names it within its conversation; `message.id` is not kept.
    pub id: String,
    /// The caller's own name for it, once in a conversation; empty for none.
    pub client_id: String,
    /// Who says what.
    pub message: Message,
    /// How far it came.
    pub status: MessageStatus,
    /// How it was made.
    pub made: Made,
}

/// A message as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMessage {
    /// Names it within its conversation.
    pub id: String,
    /// The one that it follows; empty for the first.
    pub parent: String,
    /// Which of those that follow the same one.
    pub sibling: i64,
    /// The caller's own name for it.
    pub client_id: String,
    /// The response that it belongs to; empty for none.
    pub response: String,
    /// Who says what; its id is the message's own.
    pub message: Message,
    /// How far it came.
    pub status: MessageStatus,
    /// Always part of the context.
    pub pinned: bool,
    /// How it was made.
    pub made: Made,
    /// Milliseconds since 1970.
    pub created_ms: i64,
}

/// The columns that a message is read from.
macro_rules! columns {
    () => {
        "m.id, m.parent, m.sibling, m.client_id, m.response, m.body, m.status, m.pinned, m.model, m.finish, \
         m.input_tokens, m.cached_tokens, m.output_tokens, m.created_ms"
    };
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

/// Those of the path that are there.
macro_rules! from_path {
    () => {
        " FROM path JOIN messages m ON m.id = path.id WHERE m.tenant = $1 AND m.conversation = $2 AND m.deleted_ms = 0 "
    };
}

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

    /// One message.
    pub async fn message(
        &self,
        tenant: &TenantId,
        conversation: &str,
        id: &str,
    ) -> Result<Option<StoredMessage>, StoreError> {
        const ONE: &str = concat!(
            "SELECT ",
            columns!(),
            " FROM messages m JOIN conversations c ON c.tenant = m.tenant AND c.id = m.conversation \
             WHERE m.tenant = $1 AND m.conversation = $2 AND m.id = $3 AND m.deleted_ms = 0 AND c.deleted_ms = 0"
        );
        let query = sqlx::query(ONE).bind(tenant.as_str()).bind(conversation).bind(id);
        query.fetch_optional(self.db.pool()).await?.as_ref().map(read).transpose()
    }

    /// The messages of the branch that ends with `leaf`.
    pub async fn branch(
        &self,
        tenant: &TenantId,
        conversation: &str,
        leaf: &str,
        page: &Page,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        const OLDEST: &str = concat!(
            path!(),
            "SELECT ",
            columns!(),
            from_path!(),
            "AND ($4 = '' OR m.position > (SELECT a.position FROM messages a \
                 WHERE a.tenant = $1 AND a.conversation = $2 AND a.id = $4)) \
             ORDER BY m.position LIMIT $5"
        );
        const NEWEST: &str = concat!(
            path!(),
            "SELECT ",
            columns!(),
            from_path!(),
            "AND ($4 = '' OR m.position < (SELECT a.position FROM messages a \
                 WHERE a.tenant = $1 AND a.conversation = $2 AND a.id = $4)) \
             ORDER BY m.position DESC LIMIT $5"
        );
        let statement = if page.order == Order::Ascending { OLDEST } else { NEWEST };
        let query = sqlx::query(statement).bind(tenant.as_str()).bind(conversation).bind(leaf);
        let query = query.bind(page.after.clone()).bind(i64::from(page.limit));
        query.fetch_all(self.db.pool()).await?.iter().map(read).collect()
    }

    /// What a model shall know: the pinned messages of the branch that ends with `leaf`, and its last `recent`; oldest
    /// first. Says how many were left out besides.
    pub async fn history(
        &self,
        tenant: &TenantId,
        conversation: &str,
        leaf: &str,
        recent: u32,
    ) -> Result<(Vec<StoredMessage>, u64), StoreError> {
        const COUNT: &str = concat!(path!(), "SELECT COUNT(*) AS n", from_path!());
        const PINNED: &str =
            concat!(path!(), "SELECT ", columns!(), from_path!(), "AND m.pinned = 1 ORDER BY m.position LIMIT $4");
        let page = Page { after: String::new(), limit: recent, order: Order::Descending };
        let mut messages = self.branch(tenant, conversation, leaf, &page).await?;
        messages.reverse();
        if messages.len() < recent as usize {
            return Ok((messages, 0));
        }
        let bind = |statement| sqlx::query(statement).bind(tenant.as_str()).bind(conversation).bind(leaf);
        let count: i64 = bind(COUNT).fetch_one(self.db.pool()).await?.try_get("n")?;
        let pinned = bind(PINNED).bind(i64::from(recent)).fetch_all(self.db.pool()).await?;
        let pinned: Vec<StoredMessage> = pinned.iter().map(read).collect::<Result<_, _>>()?;
        let older = pinned.into_iter().filter(|pinned| messages.iter().all(|message| message.id != pinned.id));
        let mut all: Vec<StoredMessage> = older.collect();
        all.append(&mut messages);
        let left_out = (count.max(0) as u64).saturating_sub(all.len() as u64);
        Ok((all, left_out))
    }

    /// The input or the output of a response, oldest first.
    pub async fn of_response(
        &self,
        tenant: &TenantId,
        response: &str,
        origin: Origin,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        const OF: &str = concat!(
            "SELECT ",
            columns!(),
            " FROM messages m WHERE m.tenant = $1 AND m.response = $2 AND m.origin = $3 AND m.deleted_ms = 0 \
             ORDER BY m.position"
        );
        let query = sqlx::query(OF).bind(tenant.as_str()).bind(response).bind(origin.as_str());
        query.fetch_all(self.db.pool()).await?.iter().map(read).collect()
    }

    /// All branches, in the order of their writing.
    pub async fn tree(
        &self,
        tenant: &TenantId,
        conversation: &str,
        page: &Page,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        const ALL: &str = concat!(
            "SELECT ",
            columns!(),
            " FROM messages m WHERE m.tenant = $1 AND m.conversation = $2 AND m.deleted_ms = 0 \
             AND ($3 = '' OR m.position > (SELECT a.position FROM messages a \
                 WHERE a.tenant = $1 AND a.conversation = $2 AND a.id = $3)) \
             ORDER BY m.position LIMIT $4"
        );
        let query = sqlx::query(ALL).bind(tenant.as_str()).bind(conversation).bind(page.after.clone());
        query.bind(i64::from(page.limit)).fetch_all(self.db.pool()).await?.iter().map(read).collect()
    }

    /// The message that the caller gave this name.
    pub async fn by_client_id(
        &self,
        tenant: &TenantId,
        conversation: &str,
        client_id: &str,
    ) -> Result<Option<StoredMessage>, StoreError> {
        const ONE: &str = concat!(
            "SELECT ",
            columns!(),
            " FROM messages m WHERE m.tenant = $1 AND m.conversation = $2 AND m.client_id = $3 AND m.client_id <> ''"
        );
        let query = sqlx::query(ONE).bind(tenant.as_str()).bind(conversation).bind(client_id);
        query.fetch_optional(self.db.pool()).await?.as_ref().map(read).transpose()
    }

    /// Deletes one message; what follows it stays. Says whether there was one.
    pub async fn delete_message(&self, tenant: &TenantId, conversation: &str, id: &str) -> Result<bool, StoreError> {
        const DELETE: &str = "UPDATE messages SET deleted_ms = $4 \
             WHERE tenant = $1 AND conversation = $2 AND id = $3 AND deleted_ms = 0";
        let query = sqlx::query(DELETE).bind(tenant.as_str()).bind(conversation).bind(id).bind(now_ms());
        Ok(query.execute(self.db.pool()).await?.rows_affected() > 0)
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

/// As [`Conversations::append`], within a transaction, for messages of no response.
pub(super) async fn append(
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
pub(super) async fn append_of(
    tx: &mut Tx,
    tenant: &TenantId,
    conversation: &str,
    at: &At,
    response: &str,
    messages: &[(Origin, &NewMessage)],
) -> Result<Option<Vec<String>>, StoreError> {
    // First of all: who writes to this conversation waits here for those before.
    let Some(leaf) = lock(tx, tenant, conversation).await? else { return Ok(None) };
    let first = match at {
        At::Leaf => leaf.clone(),
        At::Behind(parent) | At::Branch(parent) => parent.clone(),
    };
    if !first.is_empty() && !exists(tx, tenant, conversation, &first).await? {
        return Ok(None);
    }
    let (mut parent, mut ids) = (first.clone(), Vec::with_capacity(messages.len()));
    for (origin, new) in messages {
        if let Some(known) = known(tx, tenant, conversation, &new.client_id).await? {
            ids.push(known);
            return Ok(Some(ids));
        }
        write(tx, tenant, conversation, &parent, response, *origin, new).await?;
        parent.clone_from(&new.id);
        ids.push(new.id.clone());
    }
    if parent != first && (first == leaf || matches!(at, At::Branch(_))) {
        const MOVE: &str = "UPDATE conversations SET leaf = $3 WHERE tenant = $1 AND id = $2";
        sqlx::query(MOVE).bind(tenant.as_str()).bind(conversation).bind(parent).execute(&mut **tx).await?;
    }
    Ok(Some(ids))
}

/// Holds the conversation's row until the transaction ends; gives its leaf.
pub(super) async fn lock(tx: &mut Tx, tenant: &TenantId, conversation: &str) -> Result<Option<String>, StoreError> {
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

async fn write(
    tx: &mut Tx,
    tenant: &TenantId,
    conversation: &str,
    parent: &str,
    response: &str,
    origin: Origin,
    new: &NewMessage,
) -> Result<(), StoreError> {
    const INSERT: &str = "INSERT INTO messages (tenant, conversation, id, parent, sibling, position, client_id, \
         response, origin, body, folded, status, pinned, model, finish, input_tokens, cached_tokens, output_tokens, \
         created_ms, deleted_ms) VALUES ($1, $2, $3, $4, \
         (SELECT COUNT(*) FROM messages WHERE tenant = $1 AND conversation = $2 AND parent = $4), \
         (SELECT COUNT(*) FROM messages WHERE tenant = $1 AND conversation = $2), \
         $5, $6, $7, $8, $9, $10, 0, $11, $12, $13, $14, $15, $16, 0)";
    let Usage { input_tokens, cached_tokens, output_tokens } = new.made.usage;
    sqlx::query(INSERT)
        .bind(tenant.as_str())
        .bind(conversation)
        .bind(new.id.clone())
        .bind(parent)
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
        .bind(now_ms())
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// What a message says, as it is written. JSON escapes the zero that Postgres' text cannot hold.
#[derive(Serialize, Deserialize)]
struct Body {
    role: Role,
    #[serde(default)]
    name: Option<String>,
    parts: Vec<Part>,
}

impl Body {
    fn text_of(message: &Message) -> Result<String, StoreError> {
        let (role, name, parts) = (message.role.clone(), message.name.clone(), message.parts.clone());
        serde_json::to_string(&Self { role, name, parts }).map_err(StoreError::Body)
    }
}

fn read(row: &AnyRow) -> Result<StoredMessage, StoreError> {
    let id: String = row.try_get("id")?;
    let Body { role, name, parts } =
        serde_json::from_str(&row.try_get::<String, _>("body")?).map_err(StoreError::Body)?;
    let tokens = |column| row.try_get::<i64, _>(column).map(|count| count.max(0) as u64);
    Ok(StoredMessage {
        message: Message { id: id.clone(), role, name, parts, provenance: None },
        id,
        parent: row.try_get("parent")?,
        sibling: row.try_get("sibling")?,
        client_id: row.try_get("client_id")?,
        response: row.try_get("response")?,
        status: MessageStatus::read(&row.try_get::<String, _>("status")?),
        pinned: row.try_get::<i64, _>("pinned")? != 0,
        made: Made {
            model: row.try_get("model")?,
            finish: row.try_get("finish")?,
            usage: Usage {
                input_tokens: tokens("input_tokens")?,
                cached_tokens: tokens("cached_tokens")?,
                output_tokens: tokens("output_tokens")?,
            },
        },
        created_ms: row.try_get("created_ms")?,
    })
}

impl Origin {
    fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

impl MessageStatus {
    /// The name in the database and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }

    fn read(name: &str) -> Self {
        if name == "completed" { Self::Completed } else { Self::Incomplete }
    }
}
