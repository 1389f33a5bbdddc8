-- Which entry of the books a kept answer is, and what it says it used: two counts of one thing, which an audit compares.
-- Empty where an answer ended before anybody counted, and for those kept before this.
ALTER TABLE responses ADD COLUMN generation TEXT NOT NULL DEFAULT '';
ALTER TABLE responses ADD COLUMN input_tokens BIGINT NOT NULL DEFAULT 0;
ALTER TABLE responses ADD COLUMN output_tokens BIGINT NOT NULL DEFAULT 0;
CREATE INDEX responses_by_generation ON responses (generation) WHERE generation <> '';
