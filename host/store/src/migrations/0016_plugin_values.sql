-- What plugins keep in `kv` where it is kept here: apart for each owner (a project by its id, or a tenant for its own) and each
-- plugin. Keys and values are bytes; SQLite keeps bytes as they are under any type's name. `ends_ms` is the time from which a
-- value is absent, NULL for none.
CREATE TABLE plugin_values (
    owner TEXT NOT NULL,
    plugin TEXT NOT NULL,
    key BYTEA NOT NULL,
    value BYTEA NOT NULL,
    ends_ms BIGINT,
    PRIMARY KEY (owner, plugin, key)
);
CREATE INDEX plugin_values_by_end ON plugin_values (ends_ms) WHERE ends_ms IS NOT NULL;
CREATE INDEX plugin_values_of_space_by_end ON plugin_values (owner, plugin, ends_ms) WHERE ends_ms IS NOT NULL;

-- The bytes that count for each plugin of each owner. Whoever changes its values holds this row meanwhile.
CREATE TABLE plugin_spaces (
    owner TEXT NOT NULL,
    plugin TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (owner, plugin)
);
