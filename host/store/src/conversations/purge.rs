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

impl Conversations {
    /// Removes what was deleted before `before_ms`. A message of a conversation that stays leaves its place in the
    /// tree, with nothing in it, to those that follow it.
    ///
    /// SQLite overwrites what it removes, but for its log, which [`Self::wipe`] empties. Postgres frees the rows for its own vacuum.
    pub async fn purge(&self, before_ms: i64) -> Result<Purged, StoreError> {
        // Threads of responses go when none of their responses is left.
        const THREADS: &str = "UPDATE conversations SET deleted_ms = 1 WHERE listed = 0 AND deleted_ms = 0 \
             AND EXISTS (SELECT 1 FROM responses r WHERE r.tenant = conversations.tenant \
                 AND r.conversation = conversations.id AND r.deleted_ms BETWEEN 1 AND $1) \
             AND NOT EXISTS (SELECT 1 FROM responses r WHERE r.tenant = conversations.tenant \
                 AND r.conversation = conversations.id AND (r.deleted_ms = 0 OR r.deleted_ms > $1))";
        const FEEDBACK: &str = "DELETE FROM feedback WHERE EXISTS (SELECT 1 FROM conversations c \
             WHERE c.tenant = feedback.tenant AND c.id = feedback.conversation AND c.deleted_ms BETWEEN 1 AND $1) \
             OR EXISTS (SELECT 1 FROM messages m WHERE m.tenant = feedback.tenant \
                 AND m.conversation = feedback.conversation AND m.id = feedback.message \
                 AND m.deleted_ms BETWEEN 1 AND $1)";
        const SUMMARIES: &str = "DELETE FROM summaries WHERE deleted_ms BETWEEN 1 AND $1 \
             OR EXISTS (SELECT 1 FROM conversations c WHERE c.tenant = summaries.tenant \
                 AND c.id = summaries.conversation AND c.deleted_ms BETWEEN 1 AND $1) \
             OR EXISTS (SELECT 1 FROM messages m WHERE m.tenant = summaries.tenant \
                 AND m.conversation = summaries.conversation AND m.id = summaries.message \
                 AND m.deleted_ms BETWEEN 1 AND $1)";
        const MESSAGES: &str = "DELETE FROM messages WHERE EXISTS (SELECT 1 FROM conversations c \
             WHERE c.tenant = messages.tenant AND c.id = messages.conversation AND c.deleted_ms BETWEEN 1 AND $1)";
        const EMPTIED: &str = "UPDATE messages SET body = '', folded = '', client_id = '', model = '', report = '' \
             WHERE deleted_ms BETWEEN 1 AND $1 AND body <> ''";
        const RESPONSES: &str = "DELETE FROM responses WHERE deleted_ms BETWEEN 1 AND $1 \
             OR EXISTS (SELECT 1 FROM conversations c WHERE c.tenant = responses.tenant \
                 AND c.id = responses.conversation AND c.deleted_ms BETWEEN 1 AND $1)";
        const CONVERSATIONS: &str = "DELETE FROM conversations WHERE deleted_ms BETWEEN 1 AND $1";
        let mut tx = self.db.write().await?;
        let mut counts = [0; 7];
        let statements = [THREADS, FEEDBACK, SUMMARIES, MESSAGES, EMPTIED, RESPONSES, CONVERSATIONS];
        for (count, statement) in counts.iter_mut().zip(statements) {
            *count = sqlx::query(statement).bind(before_ms).execute(&mut *tx).await?.rows_affected();
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
