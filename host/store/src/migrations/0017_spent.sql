-- What a project or a key has spent is asked for every few seconds, for each that has a budget.
CREATE INDEX usage_by_project ON usage_entries (project, ended_ms);
CREATE INDEX usage_by_key ON usage_entries (key_name, ended_ms);
