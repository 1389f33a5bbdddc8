-- Requests refer to messages by their ids alone, whatever conversation they are in.
CREATE INDEX messages_by_id ON messages (tenant, id);
