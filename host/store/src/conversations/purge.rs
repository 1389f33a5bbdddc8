//! Removing what was deleted, so that nothing of it is left in the files.

use super::{Conversations, Tx};
use crate::error::StoreError;
use crate::usage::signed;
use sqlx::Row;
use std::collections::BTreeSet;
use std::time::Duration;

/// What a purge removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Conversations, with everything in them.
    pub conversations: u64,
    /// Responses.
    pub responses: u64,
    /// Messages of conversations that stay.
    pub messages: u64,
    /// Summaries that no longer hold, and those of such conversations.
    pub summaries: u64,
}

/// Rows that one step removes. With SQLite nobody else writes until it has ended.
const ROWS: i64 = 256;

/// After each step with SQLite, whose writers look again and again whether it is their turn, and would find the next step there.
const PAUSE: Duration = Duration::from_millis(20);

/// What is removed step by step. Responses come first: threads go with the last of theirs.
#[derive(Clone, Copy)]
enum Part {
    Responses,
    Conversations,
    Summaries,
    Messages,
}

/// Makes a statement of `$rest` about some of what was deleted up to `$1`. SQLite uses the indexes of what is to be purged for
/// what says their conditions in the same words.
macro_rules! some_deleted {
    ($rest:literal) => {
        some_deleted!($rest, "")
    };
    ($rest:literal, $besides:literal) => {
        concat!($rest, " WHERE deleted_ms BETWEEN 1 AND $1 AND deleted_ms > 0", $besides, " LIMIT $2")
    };
}

/// Deletes some of what belongs to a conversation.
macro_rules! of_conversation {
    ($table:literal, $columns:literal) => {
        concat!(
            "DELETE FROM ",
            $table,
            " WHERE tenant = $1 AND (",
            $columns,
            ") IN (SELECT ",
            $columns,
            " FROM ",
            $table,
            " WHERE tenant = $1 AND conversation = $2 LIMIT $3)"
        )
    };
}

/// Deletes what belongs to a message.
macro_rules! of_message {
    ($table:literal) => {
        concat!("DELETE FROM ", $table, " WHERE tenant = $1 AND conversation = $2 AND message = $3")
    };
}

const RESPONSES: &str = concat!(
    "DELETE FROM responses WHERE (tenant, id) IN (",
    some_deleted!("SELECT tenant, id FROM responses"),
    ") RETURNING tenant, conversation"
);
/// Threads of responses go when none of their responses is left. Those that are to go count as gone: another gateway may be at them.
const THREAD: &str = "UPDATE conversations SET deleted_ms = 1 WHERE tenant = $1 AND id = $2 AND listed = 0 AND deleted_ms = 0 \
     AND NOT EXISTS (SELECT 1 FROM responses r WHERE r.tenant = $1 AND r.conversation = $2 \
         AND (r.deleted_ms = 0 OR r.deleted_ms > $3))";

const CONVERSATIONS: &str = some_deleted!("SELECT tenant, id FROM conversations");
const OF_CONVERSATION: [&str; 2] =
    [of_conversation!("feedback", "conversation, message, key_name"), of_conversation!("messages", "conversation, id")];
const RESPONSES_OF: &str = of_conversation!("responses", "id");
const SUMMARIES_OF: &str = of_conversation!("summaries", "conversation, message");
/// Comes behind all that belongs to it, which nobody adds to once it was deleted.
const CONVERSATION: &str = "DELETE FROM conversations WHERE tenant = $1 AND id = $2";

const SUMMARIES: &str = concat!(
    "DELETE FROM summaries WHERE (tenant, conversation, message) IN (",
    some_deleted!("SELECT tenant, conversation, message FROM summaries"),
    ")"
);

const MESSAGES: &str = some_deleted!("SELECT tenant, conversation, id FROM messages", " AND body <> ''");
const FEEDBACK_OF_MESSAGE: &str = of_message!("feedback");
const SUMMARY_OF_MESSAGE: &str = of_message!("summaries");
/// Comes behind all that belongs to a message: one that is empty is not looked for again.
const EMPTIED: &str = "UPDATE messages SET body = '', folded = '', client_id = '', model = '', report = '' \
     WHERE tenant = $1 AND conversation = $2 AND id = $3 AND body <> ''";

impl Conversations {
    /// Removes what was deleted before `before_ms`. A message of a conversation that stays leaves its place in the
    /// tree, with nothing in it, to those that follow it. It is done in steps, between which others write; what a step has
    /// removed is so, whatever becomes of the next.
    ///
    /// SQLite overwrites what it removes, but for its log, which [`Self::wipe`] empties. Postgres frees the rows for its own vacuum.
    pub async fn purge(&self, before_ms: i64) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        for part in [Part::Responses, Part::Conversations, Part::Summaries, Part::Messages] {
            while self.purge_some(part, before_ms, &mut purged).await? > 0 {
                if self.db.is_held_as_a_whole() {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        Ok(purged)
    }

    /// One step; gives how many rows it has removed.
    async fn purge_some(&self, part: Part, before_ms: i64, purged: &mut Purged) -> Result<i64, StoreError> {
        let mut tx = self.db.write().await?;
        let removed = match part {
            Part::Responses => responses(&mut tx, before_ms, purged).await?,
            Part::Conversations => conversations(&mut tx, before_ms, purged).await?,
            Part::Summaries => {
                let query = sqlx::query(SUMMARIES).bind(before_ms).bind(ROWS);
                let removed = query.execute(&mut *tx).await?.rows_affected();
                purged.summaries += removed;
                signed(removed)
            }
            Part::Messages => messages(&mut tx, before_ms, purged).await?,
        };
        if removed > 0 {
            self.db.will_have_deleted();
        }
        tx.commit().await?;
        Ok(removed)
    }

    /// Leaves nothing in SQLite's log of what was removed. [`StoreError::LogInUse`] where it has to be tried again.
    pub async fn wipe(&self) -> Result<(), StoreError> {
        self.db.wipe().await
    }
}

async fn responses(tx: &mut Tx, before_ms: i64, purged: &mut Purged) -> Result<i64, StoreError> {
    let rows = sqlx::query(RESPONSES).bind(before_ms).bind(ROWS).fetch_all(&mut **tx).await?;
    let threads: BTreeSet<(String, String)> =
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<_, StoreError>>()?;
    for (tenant, conversation) in threads {
        sqlx::query(THREAD).bind(tenant).bind(conversation).bind(before_ms).execute(&mut **tx).await?;
    }
    purged.responses += rows.len() as u64;
    Ok(rows.len() as i64)
}

/// Conversations with all that is theirs, or some of it.
async fn conversations(tx: &mut Tx, before_ms: i64, purged: &mut Purged) -> Result<i64, StoreError> {
    let rows = sqlx::query(CONVERSATIONS).bind(before_ms).bind(ROWS).fetch_all(&mut **tx).await?;
    let mut left = ROWS;
    for row in rows {
        let name: (String, String) = (row.try_get(0)?, row.try_get(1)?);
        for statement in OF_CONVERSATION {
            left -= signed(some_of(tx, statement, &name, left).await?);
        }
        for (statement, count) in [(SUMMARIES_OF, &mut purged.summaries), (RESPONSES_OF, &mut purged.responses)] {
            let removed = some_of(tx, statement, &name, left).await?;
            (*count, left) = (*count + removed, left - signed(removed));
        }
        // Then there may be more of it.
        if left == 0 {
            break;
        }
        let query = sqlx::query(CONVERSATION).bind(name.0).bind(name.1);
        let removed = query.execute(&mut **tx).await?.rows_affected();
        (purged.conversations, left) = (purged.conversations + removed, left - signed(removed));
        if left == 0 {
            break;
        }
    }
    Ok(ROWS - left)
}

async fn some_of(tx: &mut Tx, statement: &'static str, name: &(String, String), most: i64) -> Result<u64, StoreError> {
    let query = sqlx::query(statement).bind(name.0.as_str()).bind(name.1.as_str()).bind(most);
    Ok(query.execute(&mut **tx).await?.rows_affected())
}

/// Messages of conversations that stay.
async fn messages(tx: &mut Tx, before_ms: i64, purged: &mut Purged) -> Result<i64, StoreError> {
    let rows = sqlx::query(MESSAGES).bind(before_ms).bind(ROWS).fetch_all(&mut **tx).await?;
    for row in &rows {
        let name: [String; 3] = [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?];
        let run = async |tx: &mut Tx, statement| {
            let query = name.iter().fold(sqlx::query(statement), |query, part| query.bind(part.as_str()));
            Ok::<u64, StoreError>(query.execute(&mut **tx).await?.rows_affected())
        };
        run(tx, FEEDBACK_OF_MESSAGE).await?;
        purged.summaries += run(tx, SUMMARY_OF_MESSAGE).await?;
        purged.messages += run(tx, EMPTIED).await?;
    }
    Ok(rows.len() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversations::{Conversation, MessageStatus, NewMessage};
    use crate::{Db, Place};
    use tidegate_types::{Message, Role, TenantId};

    #[tokio::test]
    async fn a_purge_reads_what_was_deleted_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        for statement in [RESPONSES, CONVERSATIONS, SUMMARIES, MESSAGES] {
            db.assert_finds_own(statement, &["_to_purge (deleted_ms>", "(tenant=?"]).await;
            let plan = db.plan(statement).await;
            assert!(plan.iter().any(|step| step.contains("_to_purge (deleted_ms>")), "{plan:?}");
        }
        let of_conversation = OF_CONVERSATION.into_iter().chain([RESPONSES_OF, SUMMARIES_OF, CONVERSATION, THREAD]);
        for statement in of_conversation.chain([FEEDBACK_OF_MESSAGE, SUMMARY_OF_MESSAGE, EMPTIED]) {
            db.assert_finds_own(statement, &[]).await;
        }
    }

    #[tokio::test]
    async fn a_step_of_a_purge_is_bounded_however_long_a_conversation_is() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        let (store, ann) = (Conversations::new(db.clone()), TenantId::new("ann"));
        let message = |n: i64| NewMessage {
            id: format!("m{n}"),
            client_id: String::new(),
            message: Message::text("", Role::User, "words"),
            status: MessageStatus::Completed,
            made: Default::default(),
        };
        let messages: Vec<NewMessage> = (0..ROWS + 10).map(message).collect();
        let (title, metadata, leaf) = (String::new(), "{}".into(), String::new());
        let made = Conversation { id: "c".into(), title, metadata, leaf, created_ms: 1 };
        store.create(&ann, &made, &messages).await.unwrap();
        store.delete(&ann, "c").await.unwrap();
        let mut purged = Purged::default();
        assert_eq!(store.purge_some(Part::Conversations, i64::MAX, &mut purged).await.unwrap(), ROWS);
        assert_eq!(purged, Purged::default(), "the conversation goes with the last of it");
        assert_eq!(store.purge_some(Part::Conversations, i64::MAX, &mut purged).await.unwrap(), 11);
        assert_eq!(purged, Purged { conversations: 1, ..Purged::default() });
    }
}
