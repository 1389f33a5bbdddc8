-- Keys that were made while the server ran, beside those of its config. A key is here as its hash only. Several may
-- have one name: the one that is valid, and those that it came after.
CREATE TABLE api_keys (
    hash TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    settings TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    expires_ms BIGINT,
    revoked_ms BIGINT
);
CREATE INDEX api_keys_by_name ON api_keys (name);
