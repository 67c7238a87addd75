-- End jobs as cancelled that expired before they started.
-- $1 token  $2 now  $3 limit  $4 queues  $5 their retention  $6 the retention of other queues  $7 error
-- Replies with each job as a JSON list: id, queue, task, old state, new state, attempts. Stores no reply if there are none.
WITH clock AS MATERIALIZED (
    SELECT dayjob.now_us($2) AS now
),
expired AS MATERIALIZED (
    SELECT id, queue, task, state, coalesce(($5::bigint[])[array_position($4::text[], queue)], $6) AS retention
    FROM dayjob.jobs
    WHERE expires_at <= (SELECT now FROM clock) AND attempts = 0 AND finished_at IS NULL
        AND state || '' IN ('pending', 'scheduled')
    ORDER BY expires_at
    LIMIT $3
    FOR UPDATE SKIP LOCKED
),
removed AS (
    DELETE FROM dayjob.jobs WHERE id = ANY (ARRAY(SELECT id FROM expired WHERE retention = 0))
),
saved AS (
    UPDATE dayjob.jobs
    SET state = 'cancelled', last_error = $7, finished_at = clock.now, held_key = NULL,
        remove_at = CASE WHEN expired.retention > 0 THEN clock.now + expired.retention END
    FROM clock, expired
    WHERE jobs.id = expired.id AND expired.retention <> 0
),
counted AS (
    INSERT INTO dayjob.counters (queue, pending, scheduled, cancelled)
    SELECT queue, -count(*) FILTER (WHERE state = 'pending'), -count(*) FILTER (WHERE state = 'scheduled'),
        count(*) FILTER (WHERE retention <> 0)
    FROM expired
    GROUP BY queue
),
result AS MATERIALIZED (
    SELECT coalesce(array_agg(json_build_array(id, queue, task, state, 'cancelled', 0)::text), '{}') AS reply FROM expired
),
stored AS (
    INSERT INTO dayjob.replies (token, reply) SELECT $1::uuid, reply FROM result WHERE reply <> '{}'
)
SELECT reply FROM result
