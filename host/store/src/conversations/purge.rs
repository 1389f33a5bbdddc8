//! Removing what was deleted, so that nothing of it is left in the files.

use super::Conversations;
use crate::error::StoreError;

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

/// Makes a statement of `$rest` about what was deleted up to `$1`. SQLite uses the indexes of what is to be purged for what says
/// their conditions in the same words.
macro_rules! where_deleted {
    ($rest:literal) => {
        concat!($rest, "WHERE deleted_ms BETWEEN 1 AND $1 AND deleted_ms > 0")
    };
}

/// Deletes what belongs to conversations that were deleted. The rows are found by what was deleted, and not the other way round:
/// where that is nothing, nothing is read, however much is there.
macro_rules! of_conversations {
    ($table:literal) => {
        concat!(
            "DELETE FROM ",
            $table,
            " WHERE (tenant, conversation) IN (",
            where_deleted!("SELECT tenant, id FROM conversations "),
            ")"
        )
    };
}

/// Deletes what belongs to messages that were deleted.
macro_rules! of_messages {
    ($table:literal) => {
        concat!(
            "DELETE FROM ",
            $table,
            " WHERE (tenant, conversation, message) IN (",
            where_deleted!("SELECT tenant, conversation, id FROM messages "),
            " AND body <> '')"
        )
    };
}

/// Threads of responses go when none of their responses is left.
const THREADS: &str = concat!(
    "UPDATE conversations SET deleted_ms = 1 WHERE listed = 0 AND deleted_ms = 0 AND (tenant, id) IN (",
    where_deleted!("SELECT tenant, conversation FROM responses "),
    ") AND NOT EXISTS (SELECT 1 FROM responses r WHERE r.tenant = conversations.tenant \
         AND r.conversation = conversations.id AND (r.deleted_ms = 0 OR r.deleted_ms > $1))"
);
const FEEDBACK: [&str; 2] = [of_conversations!("feedback"), of_messages!("feedback")];
const SUMMARIES: [&str; 3] =
    [where_deleted!("DELETE FROM summaries "), of_conversations!("summaries"), of_messages!("summaries")];
const MESSAGES: &str = of_conversations!("messages");
/// Comes behind all that belongs to a message: one that is empty is not looked for again.
const EMPTIED: &str = concat!(
    where_deleted!("UPDATE messages SET body = '', folded = '', client_id = '', model = '', report = '' "),
    " AND body <> ''"
);
const RESPONSES: [&str; 2] = [where_deleted!("DELETE FROM responses "), of_conversations!("responses")];
const CONVERSATIONS: &str = where_deleted!("DELETE FROM conversations ");

impl Conversations {
    /// Removes what was deleted before `before_ms`. A message of a conversation that stays leaves its place in the
    /// tree, with nothing in it, to those that follow it.
    ///
    /// SQLite overwrites what it removes, but for its log, which [`Self::wipe`] empties. Postgres frees the rows for its own vacuum.
    pub async fn purge(&self, before_ms: i64) -> Result<Purged, StoreError> {
        let mut tx = self.db.write().await?;
        let mut counts = [0; 7];
        let steps: [&[&str]; 7] =
            [&[THREADS], &FEEDBACK, &SUMMARIES, &[MESSAGES], &[EMPTIED], &RESPONSES, &[CONVERSATIONS]];
        for (count, statements) in counts.iter_mut().zip(steps) {
            for statement in statements {
                *count += sqlx::query(*statement).bind(before_ms).execute(&mut *tx).await?.rows_affected();
            }
        }
        if counts != [0; 7] {
            self.db.will_have_deleted();
        }
        tx.commit().await?;
        let [_, _, summaries, _, messages, responses, conversations] = counts;
        Ok(Purged { conversations, responses, messages, summaries })
    }

    /// Leaves nothing in SQLite's log of what was removed. [`StoreError::LogInUse`] where it has to be tried again.
    pub async fn wipe(&self) -> Result<(), StoreError> {
        self.db.wipe().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Place};

    #[tokio::test]
    async fn a_purge_reads_what_was_deleted_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        let statements = [THREADS, MESSAGES, EMPTIED, CONVERSATIONS].into_iter().chain(FEEDBACK);
        for statement in statements.chain(SUMMARIES).chain(RESPONSES) {
            db.assert_finds_own(statement, &["_to_purge (deleted_ms>", "(tenant=?"]).await;
            let plan = db.plan(statement).await;
            assert!(plan.iter().any(|step| step.contains("_to_purge (deleted_ms>")), "{plan:?}");
        }
    }
}
