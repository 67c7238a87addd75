-- End jobs as cancelled that expired before they started.
-- $1 token  $2 now  $3 limit  $4 queues  $5 their retention  $6 the retention of other queues  $7 error
-- Replies with each job as a JSON list: id, queue, task, old state, new state, attempts. Stores no reply if there are none.
WITH :CLOCK,
found AS MATERIALIZED (
    SELECT id, queue, task, state, limits, limited_by, coalesce(($5::bigint[])[array_position($4::text[], queue)], $6) AS retention
    FROM dayjob.jobs
    WHERE expires_at <= (SELECT now FROM clock) AND attempts = 0 AND finished_at IS NULL
        AND state || '' IN ('pending', 'scheduled', 'limited')
    ORDER BY expires_at
    LIMIT $3
    FOR UPDATE SKIP LOCKED
),
removed AS (
    DELETE FROM dayjob.jobs WHERE id = ANY (ARRAY(SELECT id FROM found WHERE retention = 0))
    RETURNING id
),
saved AS (
    UPDATE dayjob.jobs
    SET state = 'cancelled', last_error = $7, finished_at = clock.now, held_key = NULL, limited_by = NULL,
        remove_at = CASE WHEN found.retention > 0 THEN clock.now + found.retention END
    FROM clock, found
    WHERE jobs.id = found.id AND found.retention <> 0
    RETURNING jobs.id
),
:COUNT_CANCELLED,
:WOKEN,
result AS MATERIALIZED (
    SELECT coalesce(array_agg(json_build_array(id, queue, task, state, 'cancelled', 0)::text), '{}') || (SELECT topics FROM woken) AS reply
    FROM found
),
stored AS (:STORE WHERE reply <> '{}')
SELECT reply FROM result
