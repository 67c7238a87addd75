-- Remove those of the given jobs that finished long enough ago.
-- $1 now  $2 ids  $3 state  $4 age
-- State and time are tested where the planner does not take them for a reason to walk another index.
WITH removed AS (
    DELETE FROM dayjob.jobs
    WHERE id = ANY ($2::uuid[]) AND state || '' = $3
        AND coalesce(finished_at <= (SELECT dayjob.now_us($1) - $4::bigint), false)
    RETURNING queue, state
),
counted AS (
    INSERT INTO dayjob.counts (queue, dead, cancelled)
    SELECT queue, -count(*) FILTER (WHERE state = 'dead'), -count(*) FILTER (WHERE state = 'cancelled')
    FROM removed
    GROUP BY queue
)
SELECT count(*) FROM removed
