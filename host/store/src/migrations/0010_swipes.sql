-- The message on another branch that the reader of this one went to instead; empty where there is none.
ALTER TABLE feedback ADD COLUMN swipe TEXT NOT NULL DEFAULT '';
