-- Put values and delete keys, both in key order, so that concurrent writers do not deadlock.
-- $1 token, or NULL  $2 keys, each once  $3 values, NULL to delete
WITH given AS MATERIALIZED (
    SELECT key, value FROM unnest($2::bytea[], $3::bytea[]) AS given (key, value)
),
deleted AS (
    DELETE FROM dayjob.kv
    WHERE key = ANY (ARRAY(
        SELECT key FROM dayjob.kv
        WHERE key = ANY (ARRAY(SELECT key FROM given WHERE value IS NULL))
        ORDER BY key
        FOR UPDATE
    ))
),
put AS (
    INSERT INTO dayjob.kv (key, value)
    SELECT key, value FROM given WHERE value IS NOT NULL
    ORDER BY key
    ON CONFLICT (key) DO UPDATE SET value = excluded.value
)
INSERT INTO dayjob.replies (token, reply) SELECT $1::uuid, '{}' WHERE $1::uuid IS NOT NULL
