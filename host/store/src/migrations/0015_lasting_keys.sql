-- Random keys that every program with this database has in common. Each is made once and never changes: what was derived
-- from it is known elsewhere.
CREATE TABLE lasting_keys (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);
