-- Whose share it is of all that plugins keep: the owner's tenant, which may have many projects. Whoever makes a row says it. Of a
-- project of the config, which is in no table, it is the project's own as long as it keeps what was there before.
ALTER TABLE plugin_spaces ADD COLUMN share TEXT NOT NULL DEFAULT '';
ALTER TABLE plugin_vector_owners ADD COLUMN share TEXT NOT NULL DEFAULT '';
UPDATE plugin_spaces SET share = COALESCE((SELECT tenant FROM projects WHERE id = owner), owner);
UPDATE plugin_vector_owners SET share = COALESCE((SELECT tenant FROM projects WHERE id = owner), owner);
