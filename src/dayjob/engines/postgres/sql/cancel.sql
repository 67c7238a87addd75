-- End waiting jobs as cancelled; flag running ones.
-- $1 token  $2 now  $3 channel  $4 news if one is flagged  $5 ids  $6 queues  $7 their keeps  $8 the keep of any other queue
-- Answers, for each that was there and not finished, "id state", with the state it was in.
WITH clock AS MATERIALIZED (
    SELECT dayjob.now_us($2) AS now
),
found AS MATERIALIZED (
    SELECT id, queue, state, coalesce(($7::bigint[])[array_position($6::text[], queue)], $8) AS keep
    FROM dayjob.jobs
    WHERE id = ANY ($5::uuid[]) AND state || '' IN ('pending', 'scheduled', 'running')
    FOR UPDATE
),
flagged AS (
    UPDATE dayjob.jobs SET cancel_requested = true
    WHERE id = ANY (ARRAY(SELECT id FROM found WHERE state = 'running'))
),
removed AS (
    DELETE FROM dayjob.jobs WHERE id = ANY (ARRAY(SELECT id FROM found WHERE state <> 'running' AND keep = 0))
),
saved AS (
    UPDATE dayjob.jobs
    SET state = 'cancelled', finished_at = clock.now, held_key = NULL,
        remove_at = CASE WHEN found.keep > 0 THEN clock.now + found.keep END
    FROM clock, found
    WHERE jobs.id = found.id AND found.state <> 'running' AND found.keep <> 0
),
counted AS (
    INSERT INTO dayjob.counts (queue, pending, scheduled, cancelled)
    SELECT queue, -count(*) FILTER (WHERE state = 'pending'), -count(*) FILTER (WHERE state = 'scheduled'),
        count(*) FILTER (WHERE keep <> 0)
    FROM found
    WHERE state <> 'running'
    GROUP BY queue
),
answer AS MATERIALIZED (
    SELECT coalesce(array_agg(concat(id, ' ', state)), '{}') AS told, bool_or(state = 'running') AS flags
    FROM found
),
noted AS (
    INSERT INTO dayjob.batches (token, answer)
    SELECT $1::uuid, told FROM answer WHERE $1::uuid IS NOT NULL
)
SELECT told, CASE WHEN flags THEN pg_notify($3, $4) END FROM answer
