-- Remove old replies, the oldest first.
-- $1 microseconds for which a reply is kept  $2 limit  $3 the time of the first reply to consider
-- Returns their number, and the time of the last one.
-- A repetition is harmless: it removes the next ones.
WITH old AS MATERIALIZED (
    SELECT token, stored_at FROM dayjob.replies
    WHERE stored_at >= $3::bigint AND stored_at < (SELECT dayjob.now_us(NULL) - $1::bigint)
    ORDER BY stored_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
),
removed AS (
    DELETE FROM dayjob.replies WHERE token = ANY (ARRAY(SELECT token FROM old))
)
SELECT count(*), max(stored_at) FROM old
