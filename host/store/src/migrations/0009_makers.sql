-- Which gateway makes a response, and until when each of those that share this database is there, unless it says so again.
ALTER TABLE responses ADD COLUMN gateway TEXT NOT NULL DEFAULT '';
CREATE TABLE gateways (
    name TEXT PRIMARY KEY,
    until_ms BIGINT NOT NULL
);
