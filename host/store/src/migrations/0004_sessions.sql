-- People who are logged in. What a browser holds is here as its hash only.
CREATE TABLE sessions (
    hash TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    claims TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    seen_ms BIGINT NOT NULL,
    ends_ms BIGINT NOT NULL
);
CREATE INDEX sessions_by_end ON sessions (ends_ms);
