-- Return those of the transactions that have ended, and whether each has committed.
-- $1 their ids, as text
-- An id that is too old for the server's records counts as committed: one notification too many is harmless.
SELECT id, coalesce(pg_xact_status(id::xid8), 'committed') = 'committed'
FROM unnest($1::text[]) AS id
WHERE pg_xact_status(id::xid8) IS DISTINCT FROM 'in progress'
