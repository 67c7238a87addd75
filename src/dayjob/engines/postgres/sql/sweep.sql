-- Remove finished jobs whose retention is over.
-- $1 token  $2 now  $3 limit
-- Replies with their number. Stores no reply if there are none.
WITH expired AS MATERIALIZED (
    SELECT id FROM dayjob.jobs
    WHERE remove_at <= (SELECT dayjob.now_us($2))
    ORDER BY remove_at
    LIMIT $3
    FOR UPDATE SKIP LOCKED
),
removed AS (
    DELETE FROM dayjob.jobs WHERE id = ANY (ARRAY(SELECT id FROM expired))
    RETURNING queue, state
),
counted AS (
    INSERT INTO dayjob.counters (queue, dead, cancelled)
    SELECT queue, -count(*) FILTER (WHERE state = 'dead'), -count(*) FILTER (WHERE state = 'cancelled')
    FROM removed
    GROUP BY queue
),
result AS MATERIALIZED (
    SELECT ARRAY[count(*)::text] AS reply FROM removed
),
stored AS (
    INSERT INTO dayjob.replies (token, reply) SELECT $1::uuid, reply FROM result WHERE reply <> '{0}'
)
SELECT reply FROM result
