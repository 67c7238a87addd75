-- Make due jobs pending, and wake the lines whose tokens are due.
-- $1 token  $2 now  $3 limit
-- Replies with their number, and "0 pending queue" for each of their queues. Stores no reply if there are none.
WITH :CLOCK,
due AS MATERIALIZED (
    SELECT id FROM dayjob.jobs
    WHERE state = 'scheduled' AND run_at <= (SELECT now FROM clock)
    ORDER BY run_at
    LIMIT $3
    FOR UPDATE SKIP LOCKED
),
saved AS (
    UPDATE dayjob.jobs SET state = 'pending', late = pg_current_xact_id(), claimed_at = NULL, lease_expires_at = NULL, worker = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM due))
    RETURNING queue
),
counted AS (
    INSERT INTO dayjob.counters (queue, scheduled, pending)
    SELECT queue, -count(*), count(*) FROM saved GROUP BY queue
),
lines AS MATERIALIZED (
    SELECT woken, topics FROM dayjob.wake_due($2, $3)
    WHERE EXISTS (SELECT FROM dayjob.buckets WHERE due <= (SELECT now FROM clock))
),
counts AS MATERIALIZED (
    SELECT count(*) + coalesce((SELECT woken FROM lines), 0) AS promoted,
        array_agg(DISTINCT '0 pending ' || queue) || (SELECT topics FROM lines) AS topics
    FROM saved
),
result AS MATERIALIZED (
    SELECT promoted, promoted::text || topics AS reply FROM counts
),
stored AS (:STORE WHERE promoted > 0)
SELECT reply FROM result
