-- Make due jobs pending.
-- $1 now  $2 limit
-- Answers how many there were, and on which queues.
WITH clock AS MATERIALIZED (
    SELECT dayjob.now_us($1) AS now
),
due AS MATERIALIZED (
    SELECT id FROM dayjob.jobs
    WHERE state = 'scheduled' AND run_at <= (SELECT now FROM clock)
    ORDER BY run_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
),
saved AS (
    UPDATE dayjob.jobs SET state = 'pending', claimed_at = NULL, lease_expires_at = NULL, worker = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM due))
    RETURNING queue
),
counted AS (
    INSERT INTO dayjob.counts (queue, scheduled, pending)
    SELECT queue, -count(*), count(*) FROM saved GROUP BY queue
)
SELECT count(*), array_agg(DISTINCT queue) FROM saved
