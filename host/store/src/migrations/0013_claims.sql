-- Which gateway does what a key was claimed for; empty once it was done.
ALTER TABLE idempotency ADD COLUMN gateway TEXT NOT NULL DEFAULT '';
