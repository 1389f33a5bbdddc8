-- What is known of an answer besides what it says, as JSON; empty where nothing is.
ALTER TABLE messages ADD COLUMN report TEXT NOT NULL DEFAULT '';

-- Who named a conversation: 0 nobody yet, 1 a model, 2 a caller, whose word is the last.
ALTER TABLE conversations ADD COLUMN titled BIGINT NOT NULL DEFAULT 0;
UPDATE conversations SET titled = 2 WHERE title <> '';

-- What was said up to `message`, itself included, in short. It holds for every branch that goes through that message, as
-- long as `covers` messages of it are there: one that was deleted since takes the summary with it.
CREATE TABLE summaries (
    tenant TEXT NOT NULL,
    conversation TEXT NOT NULL,
    message TEXT NOT NULL,
    covers BIGINT NOT NULL,
    body TEXT NOT NULL,
    model TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    deleted_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, conversation, message)
);
CREATE INDEX summaries_deleted ON summaries (deleted_ms);
