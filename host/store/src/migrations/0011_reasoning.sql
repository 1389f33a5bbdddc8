-- Of the generated tokens, those of reasoning; none where nobody told them from the rest.
ALTER TABLE messages ADD COLUMN reasoning_tokens BIGINT;
