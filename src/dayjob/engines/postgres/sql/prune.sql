-- Forget the answers of old batches.
-- $1 microseconds for which they are kept  $2 how many at most
DELETE FROM dayjob.batches
WHERE token = ANY (ARRAY(
    SELECT token FROM dayjob.batches
    WHERE noted_at < (SELECT dayjob.now_us(NULL) - $1::bigint)
    ORDER BY noted_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
))
