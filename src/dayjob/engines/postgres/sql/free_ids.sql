-- Remove reservations that have ended.
-- $1 now  $2 limit
-- Returns their number. A repetition is harmless: it removes the next ones.
WITH removed AS (
    DELETE FROM dayjob.reserved_ids
    WHERE id = ANY (ARRAY(
        SELECT id FROM dayjob.reserved_ids
        WHERE reserved_until <= (SELECT dayjob.now_us($1))
        ORDER BY reserved_until
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING id
)
SELECT count(*) FROM removed
