-- Of what was deleted, and nothing else. Nearly every row has `deleted_ms = 0`, and SQLite, which does not know how many have, read
-- all tenants' rows by an index that had those too. A message that a purge has emptied stays, but is looked for no more. The
-- old ones go last: on Postgres nobody reads from when they do.
CREATE INDEX conversations_to_purge ON conversations (deleted_ms) WHERE deleted_ms > 0;
CREATE INDEX messages_to_purge ON messages (deleted_ms) WHERE deleted_ms > 0 AND body <> '';
CREATE INDEX responses_to_purge ON responses (deleted_ms) WHERE deleted_ms > 0;
CREATE INDEX summaries_to_purge ON summaries (deleted_ms) WHERE deleted_ms > 0;

-- Each login removes the sessions that were not used for long.
CREATE INDEX sessions_by_use ON sessions (seen_ms);

DROP INDEX conversations_deleted;
DROP INDEX messages_deleted;
DROP INDEX responses_deleted;
DROP INDEX summaries_deleted;
