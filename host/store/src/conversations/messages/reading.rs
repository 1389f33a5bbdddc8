//! Reading messages: one, a branch, a history, all of them.

use super::super::{Conversations, Order, Page};
use super::{Origin, StoredMessage, read};
use crate::error::StoreError;
use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, Row};
use tidegate_types::TenantId;

/// The columns that a message is read from.
macro_rules! columns {
    () => {
        "m.id, m.parent, m.sibling, m.client_id, m.response, m.body, m.status, m.pinned, m.model, m.finish, \
         m.input_tokens, m.cached_tokens, m.output_tokens, m.reasoning_tokens, m.report, m.created_ms"
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

/// The newest of the path, at most `$5`, until they hold more than `$4` bytes; the last of all in any case.
macro_rules! newest_of_path {
    ($which:literal) => {
        concat!(
            path!(),
            ", newest AS (SELECT m.*, SUM(OCTET_LENGTH(m.body)) OVER (ORDER BY m.position DESC) AS held",
            from_path!(),
            $which,
            ") SELECT ",
            columns!(),
            " FROM newest m WHERE m.held <= $4 OR m.id = $3 ORDER BY m.position DESC LIMIT $5"
        )
    };
}

/// A page of messages: the first `$limit` of what is found, until they hold more than `$bytes`; the first in any case. `n` is how
/// many of them there are.
macro_rules! page {
    ($path:expr, $found:expr, $order:literal, $limit:literal, $bytes:literal) => {
        concat!(
            $path,
            " found AS (SELECT m.conversation, m.id, m.position, OCTET_LENGTH(m.body) + OCTET_LENGTH(m.report) AS size",
            $found,
            "ORDER BY m.position ",
            $order,
            " LIMIT ",
            $limit,
            "), held AS (SELECT conversation, id, COUNT(*) OVER () AS n, \
                 SUM(size) OVER (ORDER BY position ",
            $order,
            ") AS held, size FROM found) SELECT held.n, ",
            columns!(),
            " FROM held CROSS JOIN messages m WHERE m.tenant = $1 AND m.conversation = held.conversation AND m.id = held.id \
             AND (held.held <= ",
            $bytes,
            " OR held.held = held.size) ORDER BY m.position ",
            $order
        )
    };
}

/// Those of a branch that are behind `$4`, or before it.
macro_rules! branch {
    ($order:literal, $behind:literal) => {
        page!(
            concat!(path!(), ","),
            concat!(
                from_path!(),
                "AND ($4 = '' OR m.position ",
                $behind,
                " (SELECT a.position FROM messages a WHERE a.tenant = $1 AND a.conversation = $2 AND a.id = $4)) "
            ),
            $order,
            "$5",
            "$6"
        )
    };
}

/// The same of what was asked of a response.
macro_rules! input {
    ($order:literal, $behind:literal) => {
        page!(
            "WITH",
            concat!(
                " FROM messages m WHERE m.tenant = $1 AND m.response = $2 AND m.origin = $3 AND m.deleted_ms = 0 \
                 AND ($4 = '' OR m.position ",
                $behind,
                " (SELECT a.position FROM messages a WHERE a.tenant = $1 AND a.response = $2 AND a.id = $4)) "
            ),
            $order,
            "$5",
            "$6"
        )
    };
}

/// The same of all branches, by `$3`.
macro_rules! tree {
    ($order:literal, $behind:literal) => {
        page!(
            "WITH",
            concat!(
                " FROM messages m WHERE m.tenant = $1 AND m.conversation = $2 AND m.deleted_ms = 0 \
                 AND ($3 = '' OR m.position ",
                $behind,
                " (SELECT a.position FROM messages a WHERE a.tenant = $1 AND a.conversation = $2 AND a.id = $3)) "
            ),
            $order,
            "$4",
            "$5"
        )
    };
}

const BRANCH_OLDEST: &str = branch!("ASC", ">");
const BRANCH_NEWEST: &str = branch!("DESC", "<");
const INPUT_OLDEST: &str = input!("ASC", ">");
const INPUT_NEWEST: &str = input!("DESC", "<");
const TREE_OLDEST: &str = tree!("ASC", ">");
const TREE_NEWEST: &str = tree!("DESC", "<");
const HISTORY_COUNT: &str = concat!(path!(), "SELECT COUNT(*) AS n", from_path!());
const HISTORY_RECENT: &str = newest_of_path!("");
const HISTORY_PINNED: &str = newest_of_path!("AND m.pinned = 1");
const OF_RESPONSE: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM messages m WHERE m.tenant = $1 AND m.response = $2 AND m.origin = $3 AND m.deleted_ms = 0 \
     ORDER BY m.position"
);
/// Bytes of messages on a page, which is made in memory; one message may have more.
const PAGE_BYTES: i64 = 4 << 20;

/// A page of messages as it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct MessagePage {
    /// As many as were asked for, or fewer where they are long.
    pub messages: Vec<StoredMessage>,
    /// Whether others are behind them.
    pub has_more: bool,
}

impl Conversations {
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
    ) -> Result<MessagePage, StoreError> {
        let statement = if page.order == Order::Ascending { BRANCH_OLDEST } else { BRANCH_NEWEST };
        self.page(page, sqlx::query(statement).bind(tenant.as_str()).bind(conversation).bind(leaf)).await
    }

    /// What a model shall know: the pinned messages of the branch that ends with `leaf`, and its last `recent`, as far as
    /// either has no more than `max_bytes`; oldest first. Says how many were left out besides.
    pub async fn history(
        &self,
        tenant: &TenantId,
        conversation: &str,
        leaf: &str,
        recent: u32,
        max_bytes: u64,
    ) -> Result<(Vec<StoredMessage>, u64), StoreError> {
        let bind = |statement| sqlx::query(statement).bind(tenant.as_str()).bind(conversation).bind(leaf);
        let newest = async |statement| {
            let query = bind(statement).bind(i64::try_from(max_bytes).unwrap_or(i64::MAX)).bind(i64::from(recent));
            let rows = query.fetch_all(self.db.pool()).await?;
            rows.iter().rev().map(read).collect::<Result<Vec<StoredMessage>, StoreError>>()
        };
        let mut messages = newest(HISTORY_RECENT).await?;
        let count: i64 = bind(HISTORY_COUNT).fetch_one(self.db.pool()).await?.try_get("n")?;
        let count = count.max(0) as u64;
        if messages.len() as u64 == count {
            return Ok((messages, 0));
        }
        let pinned = newest(HISTORY_PINNED).await?;
        let older = pinned.into_iter().filter(|pinned| messages.iter().all(|message| message.id != pinned.id));
        let mut all: Vec<StoredMessage> = older.collect();
        all.append(&mut messages);
        let left_out = count.saturating_sub(all.len() as u64);
        Ok((all, left_out))
    }

    /// The input or the output of a response, oldest first.
    pub async fn of_response(
        &self,
        tenant: &TenantId,
        response: &str,
        origin: Origin,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let query = sqlx::query(OF_RESPONSE).bind(tenant.as_str()).bind(response).bind(origin.as_str());
        query.fetch_all(self.db.pool()).await?.iter().map(read).collect()
    }

    /// What was asked of a response, from the item that the page begins behind, be that there or deleted since.
    pub async fn input(&self, tenant: &TenantId, response: &str, page: &Page) -> Result<MessagePage, StoreError> {
        let statement = if page.order == Order::Ascending { INPUT_OLDEST } else { INPUT_NEWEST };
        let query = sqlx::query(statement).bind(tenant.as_str()).bind(response).bind(Origin::Input.as_str());
        self.page(page, query).await
    }

    /// Whether a page of a conversation can begin behind this message, be that there or deleted since.
    pub async fn had_message(&self, tenant: &TenantId, conversation: &str, id: &str) -> Result<bool, StoreError> {
        const FIND: &str = "SELECT id FROM messages WHERE tenant = $1 AND conversation = $2 AND id = $3";
        let query = sqlx::query(FIND).bind(tenant.as_str()).bind(conversation).bind(id);
        Ok(query.fetch_optional(self.db.pool()).await?.is_some())
    }

    /// The same of a page of what was asked of a response.
    pub async fn had_input(&self, tenant: &TenantId, response: &str, id: &str) -> Result<bool, StoreError> {
        const FIND: &str = "SELECT id FROM messages WHERE tenant = $1 AND response = $2 AND id = $3";
        let query = sqlx::query(FIND).bind(tenant.as_str()).bind(response).bind(id);
        Ok(query.fetch_optional(self.db.pool()).await?.is_some())
    }

    /// All branches, in the order of their writing, or the other way.
    pub async fn tree(&self, tenant: &TenantId, conversation: &str, page: &Page) -> Result<MessagePage, StoreError> {
        let statement = if page.order == Order::Ascending { TREE_OLDEST } else { TREE_NEWEST };
        self.page(page, sqlx::query(statement).bind(tenant.as_str()).bind(conversation)).await
    }

    /// Of one more message than a page has, so that it is known whether one is behind it.
    async fn page<'q>(&self, page: &'q Page, query: Query<'q, Any, AnyArguments>) -> Result<MessagePage, StoreError> {
        let query = query.bind(page.after.as_str()).bind(i64::from(page.limit) + 1).bind(PAGE_BYTES);
        let rows = query.fetch_all(self.db.pool()).await?;
        let num_found: i64 = rows.first().map_or(Ok(0), |row| row.try_get("n"))?;
        let shown = rows.iter().take(page.limit as usize).map(read).collect::<Result<Vec<StoredMessage>, _>>()?;
        Ok(MessagePage { has_more: num_found > shown.len() as i64, messages: shown })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Place};

    #[tokio::test]
    async fn messages_are_read_without_a_look_at_what_others_have() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        for statement in [HISTORY_COUNT, OF_RESPONSE] {
            db.assert_finds_own(statement, &["SCAN path", "path USING AUTOMATIC"]).await;
        }
        for statement in [BRANCH_OLDEST, BRANCH_NEWEST, INPUT_OLDEST, INPUT_NEWEST, TREE_OLDEST, TREE_NEWEST] {
            // The ids of a page are summed up, and of those of the sum the messages are read.
            let page = ["SCAN found", "SCAN (subquery", "SCAN held"];
            let besides = [&["SCAN path", "path USING AUTOMATIC"], &page[..]].concat();
            db.assert_finds_own(statement, &besides).await;
        }
        for statement in [HISTORY_RECENT, HISTORY_PINNED] {
            // What is found of the path is read twice: to sum up its bytes, and to choose.
            db.assert_finds_own(statement, &["SCAN path", "path USING AUTOMATIC", "SCAN (subquery", "SCAN m"]).await;
        }
    }
}
