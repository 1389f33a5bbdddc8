-- One row for each thing that a tenant pays for, written once: by generation and kind. Amounts are in billionths of
-- the operator's currency; corrections are rows of their own.
CREATE TABLE usage_entries (
    generation TEXT NOT NULL,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    key_name TEXT NOT NULL,
    end_user TEXT,
    model TEXT NOT NULL,
    request_id TEXT NOT NULL,
    begun_ms BIGINT NOT NULL,
    ended_ms BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    input_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    input_price BIGINT NOT NULL,
    cached_price BIGINT NOT NULL,
    output_price BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    PRIMARY KEY (generation, kind)
);
CREATE INDEX usage_by_tenant ON usage_entries (tenant, ended_ms);

-- How far each gateway's journal has been taken into this database.
CREATE TABLE journal_positions (
    journal TEXT PRIMARY KEY,
    segment BIGINT NOT NULL,
    position BIGINT NOT NULL
);

-- Events for others, until they have taken them.
CREATE TABLE outbox (
    id TEXT PRIMARY KEY,
    created_ms BIGINT NOT NULL,
    payload TEXT NOT NULL
);
CREATE INDEX outbox_by_age ON outbox (created_ms, id);
