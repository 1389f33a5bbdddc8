-- Calls of tools and retrievers, beside tokens: how many of each kind, and what all of them cost together. `amount` has
-- that already.
ALTER TABLE usage_entries ADD COLUMN tool_calls BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_entries ADD COLUMN retrieval_calls BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_entries ADD COLUMN calls_amount BIGINT NOT NULL DEFAULT 0;

-- The same, one row for each thing that has a price: `name` is a plugin, or PLUGIN/TOOL.
CREATE TABLE usage_calls (
    generation TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    calls BIGINT NOT NULL,
    price BIGINT NOT NULL,
    PRIMARY KEY (generation, kind, name)
);
