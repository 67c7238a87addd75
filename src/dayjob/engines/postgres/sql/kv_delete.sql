-- $1 keys
DELETE FROM dayjob.kv WHERE key = ANY (ARRAY(SELECT key FROM dayjob.kv WHERE key = ANY ($1::bytea[]) ORDER BY key FOR UPDATE))
