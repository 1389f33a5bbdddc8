-- What each tenant, project and key has spent on each day (UTC). Nothing looks for entries by these any more.
CREATE TABLE spent_by_day (
    holder TEXT NOT NULL,
    name TEXT NOT NULL,
    day_ms BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    PRIMARY KEY (holder, name, day_ms)
);
INSERT INTO spent_by_day (holder, name, day_ms, amount)
    SELECT 'tenant', tenant, ended_ms - ended_ms % 86400000, CAST(SUM(amount) AS BIGINT) FROM usage_entries
    WHERE amount > 0 GROUP BY 2, 3;
INSERT INTO spent_by_day (holder, name, day_ms, amount)
    SELECT 'project', project, ended_ms - ended_ms % 86400000, CAST(SUM(amount) AS BIGINT) FROM usage_entries
    WHERE amount > 0 AND project <> '' GROUP BY 2, 3;
INSERT INTO spent_by_day (holder, name, day_ms, amount)
    SELECT 'key', key_name, ended_ms - ended_ms % 86400000, CAST(SUM(amount) AS BIGINT) FROM usage_entries
    WHERE amount > 0 GROUP BY 2, 3;
DROP INDEX usage_by_project;
DROP INDEX usage_by_key;
