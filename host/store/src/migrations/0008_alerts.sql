-- Bounds of budgets that were told of, by the names of the alerts: each once, whichever gateway finds it reached, and
-- however often it starts.
CREATE TABLE budget_alerts (
    id TEXT PRIMARY KEY,
    created_ms BIGINT NOT NULL
);
