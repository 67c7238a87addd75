-- Return the values of keys.
-- $1 keys
SELECT key, value FROM dayjob.kv WHERE key = ANY ($1::bytea[])
