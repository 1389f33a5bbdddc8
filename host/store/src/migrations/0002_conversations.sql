-- A conversation is a tree of messages: `leaf` is the one that the next follows. Those that are not listed hold the
-- messages of responses that name each other. Nothing is NULL: an empty text or 0 says that there is none.
CREATE TABLE conversations (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    listed BIGINT NOT NULL,
    title TEXT NOT NULL,
    folded TEXT NOT NULL,
    metadata TEXT NOT NULL,
    leaf TEXT NOT NULL,
    version BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    deleted_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX conversations_by_age ON conversations (tenant, created_ms, id);
CREATE INDEX conversations_deleted ON conversations (deleted_ms);

-- `position` counts the messages of a conversation in the order of their writing, so that it grows along each branch;
-- `sibling` counts those that follow the same one. `folded` is the text in lower case, for searching.
CREATE TABLE messages (
    tenant TEXT NOT NULL,
    conversation TEXT NOT NULL,
    id TEXT NOT NULL,
    parent TEXT NOT NULL,
    sibling BIGINT NOT NULL,
    position BIGINT NOT NULL,
    client_id TEXT NOT NULL,
    response TEXT NOT NULL,
    origin TEXT NOT NULL,
    body TEXT NOT NULL,
    folded TEXT NOT NULL,
    status TEXT NOT NULL,
    pinned BIGINT NOT NULL,
    model TEXT NOT NULL,
    finish TEXT NOT NULL,
    input_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    deleted_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, conversation, id)
);
CREATE UNIQUE INDEX messages_by_parent ON messages (tenant, conversation, parent, sibling);
CREATE UNIQUE INDEX messages_by_client ON messages (tenant, conversation, client_id) WHERE client_id <> '';
CREATE INDEX messages_by_response ON messages (tenant, response);
CREATE INDEX messages_deleted ON messages (deleted_ms);

-- What answered, as it was told to the caller; `leaf` is its last message.
CREATE TABLE responses (
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    conversation TEXT NOT NULL,
    previous TEXT NOT NULL,
    leaf TEXT NOT NULL,
    status TEXT NOT NULL,
    body TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    deleted_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX responses_by_conversation ON responses (tenant, conversation);
CREATE INDEX responses_by_previous ON responses (tenant, previous);
CREATE INDEX responses_deleted ON responses (deleted_ms);
CREATE INDEX responses_by_status ON responses (status, created_ms);

-- What people think of a message, one opinion of each key.
CREATE TABLE feedback (
    tenant TEXT NOT NULL,
    conversation TEXT NOT NULL,
    message TEXT NOT NULL,
    key_name TEXT NOT NULL,
    rating BIGINT NOT NULL,
    reason TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, conversation, message, key_name)
);

-- What was made for a key that its caller chose; both key and request are kept as hashes.
CREATE TABLE idempotency (
    tenant TEXT NOT NULL,
    route TEXT NOT NULL,
    key_hash TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    object TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, route, key_hash)
);
CREATE INDEX idempotency_by_age ON idempotency (created_ms);
