-- End jobs as cancelled that were not started before they expired.
-- $1 now  $2 limit  $3 queues  $4 their keeps  $5 the keep of any other queue  $6 the reason
-- Answers which.
WITH clock AS MATERIALIZED (
    SELECT dayjob.now_us($1) AS now
),
expired AS MATERIALIZED (
    SELECT id, queue, state, coalesce(($4::bigint[])[array_position($3::text[], queue)], $5) AS keep
    FROM dayjob.jobs
    WHERE expires_at <= (SELECT now FROM clock) AND attempts = 0 AND finished_at IS NULL
        AND state || '' IN ('pending', 'scheduled')
    ORDER BY expires_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
),
removed AS (
    DELETE FROM dayjob.jobs WHERE id = ANY (ARRAY(SELECT id FROM expired WHERE keep = 0))
),
saved AS (
    UPDATE dayjob.jobs
    SET state = 'cancelled', last_error = $6, finished_at = clock.now, held_key = NULL,
        remove_at = CASE WHEN expired.keep > 0 THEN clock.now + expired.keep END
    FROM clock, expired
    WHERE jobs.id = expired.id AND expired.keep <> 0
),
counted AS (
    INSERT INTO dayjob.counts (queue, pending, scheduled, cancelled)
    SELECT queue, -count(*) FILTER (WHERE state = 'pending'), -count(*) FILTER (WHERE state = 'scheduled'),
        count(*) FILTER (WHERE keep <> 0)
    FROM expired
    GROUP BY queue
)
SELECT array_agg(id) FROM expired
