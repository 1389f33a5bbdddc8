-- Projects of tenants that were made while the server ran, beside those of its config. `settings` is JSON.
CREATE TABLE projects (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    settings TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    archived_ms BIGINT
);
CREATE INDEX projects_by_tenant ON projects (tenant, created_ms, id);

-- What was used for which project; empty for the tenant's own, as for all that was used before.
ALTER TABLE usage_entries ADD COLUMN project TEXT NOT NULL DEFAULT '';
