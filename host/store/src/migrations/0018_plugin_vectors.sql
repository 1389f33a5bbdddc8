-- What plugins keep in `vectors` where it is kept here: by owner (a project by its id, or a tenant for its own) and collection.
-- `vector` is numbers of 32 bits, the lowest byte first, `payload` a JSON array of pairs, `cost` the bytes that an entry counts
-- as. Gateways search copies in their memory, which follow `changed`; so what was deleted stays for a while, as a row whose
-- `vector` is NULL and `deleted_ms` is not.
CREATE TABLE plugin_vectors (
    owner TEXT NOT NULL,
    collection TEXT NOT NULL,
    id BYTEA NOT NULL,
    cost BIGINT NOT NULL,
    changed BIGINT NOT NULL,
    deleted_ms BIGINT,
    vector BYTEA,
    payload TEXT,
    PRIMARY KEY (owner, collection, id)
);
CREATE INDEX plugin_vectors_by_change ON plugin_vectors (owner, changed, collection, id);
CREATE INDEX plugin_vectors_there ON plugin_vectors (owner, collection) WHERE deleted_ms IS NULL;
CREATE INDEX plugin_vectors_by_deletion ON plugin_vectors (deleted_ms) WHERE deleted_ms IS NOT NULL;
CREATE INDEX plugin_vectors_of_owner_by_deletion ON plugin_vectors (owner, deleted_ms) WHERE deleted_ms IS NOT NULL;

-- Of each owner: the last change, the last one of those that were forgotten with what they deleted, the bytes of all its entries,
-- and those of what was deleted. Whoever changes these holds this row meanwhile.
CREATE TABLE plugin_vector_owners (
    owner TEXT NOT NULL PRIMARY KEY,
    changed BIGINT NOT NULL,
    forgotten BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    deleted_bytes BIGINT NOT NULL
);
