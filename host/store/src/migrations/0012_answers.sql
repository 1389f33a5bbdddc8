-- The message that a response answers, which it is not made any further without; empty where it has an input of its own.
ALTER TABLE responses ADD COLUMN answers TEXT NOT NULL DEFAULT '';
