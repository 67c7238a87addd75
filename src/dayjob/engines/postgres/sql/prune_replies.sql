-- Remove old replies.
-- $1 microseconds for which a reply is kept  $2 limit
-- A repetition is harmless: it removes the next ones.
DELETE FROM dayjob.replies
WHERE token = ANY (ARRAY(
    SELECT token FROM dayjob.replies
    WHERE stored_at < (SELECT dayjob.now_us(NULL) - $1::bigint)
    ORDER BY stored_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
))
