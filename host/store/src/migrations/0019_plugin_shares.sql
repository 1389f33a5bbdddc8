-- Whose share it is of all that plugins keep: the owner's tenant, which may have many projects. Whoever changes a row for
-- a plugin says it: until then it is a guess for a project of the config, which is in no table, and unknown in a row of a gateway
-- of before.
ALTER TABLE plugin_spaces ADD COLUMN share TEXT NOT NULL DEFAULT '';
ALTER TABLE plugin_vector_owners ADD COLUMN share TEXT NOT NULL DEFAULT '';
UPDATE plugin_spaces SET share = COALESCE((SELECT tenant FROM projects WHERE id = owner), owner);
UPDATE plugin_vector_owners SET share = COALESCE((SELECT tenant FROM projects WHERE id = owner), owner);
