-- End waiting jobs as cancelled; store a cancel request for running ones.
-- $1 token  $2 now  $3 channel  $4 message if a cancel is requested  $5 ids
-- $6 queues  $7 their retention  $8 the retention of other queues
-- Replies with each job that was not finished as a JSON list: id, queue, task, state before, state, attempts.
WITH :CLOCK,
found AS MATERIALIZED (
    SELECT id, queue, task, state, attempts, limits, limited_by, coalesce(($7::bigint[])[array_position($6::text[], queue)], $8) AS retention
    FROM dayjob.jobs
    WHERE id = ANY ($5::uuid[]) AND state || '' IN ('pending', 'scheduled', 'running', 'limited')
    FOR UPDATE
),
requested AS (
    UPDATE dayjob.jobs SET cancel_requested = true
    WHERE id = ANY (ARRAY(SELECT id FROM found WHERE state = 'running'))
),
removed AS (
    DELETE FROM dayjob.jobs
    WHERE id = ANY (ARRAY(SELECT id FROM found WHERE state <> 'running' AND retention = 0))
    RETURNING id
),
saved AS (
    UPDATE dayjob.jobs
    SET state = 'cancelled', finished_at = clock.now, held_key = NULL, limited_by = NULL,
        remove_at = CASE WHEN found.retention > 0 THEN clock.now + found.retention END
    FROM clock, found
    WHERE jobs.id = ANY (ARRAY[found.id]) AND found.state <> 'running' AND found.retention <> 0
    RETURNING jobs.id
),
:COUNT_CANCELLED,
:WOKEN,
result AS MATERIALIZED (
    SELECT bool_or(state = 'running') AS requests, coalesce(array_agg(json_build_array(id, queue, task, state,
        CASE state WHEN 'running' THEN state ELSE 'cancelled' END, attempts)::text), '{}') || (SELECT topics FROM woken) AS reply
    FROM found
),
stored AS (:STORE)
SELECT reply, CASE WHEN requests AND :NOTIFICATIONS_FIT THEN pg_notify($3, $4) END FROM result
