-- Put values, in the order of their keys so that two writers never wait for one another in a circle.
-- $1 keys, each once  $2 values
INSERT INTO dayjob.kv (key, value)
SELECT key, value FROM unnest($1::bytea[], $2::bytea[]) AS given (key, value)
ORDER BY key
ON CONFLICT (key) DO UPDATE SET value = excluded.value
