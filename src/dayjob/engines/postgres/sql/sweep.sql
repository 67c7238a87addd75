-- Remove finished jobs whose retention is over.
-- $1 token  $2 now  $3 limit  $4 the time to start at: index entries before it may be those of removed jobs
-- Replies with their number and the last time. Stores no reply if there are none.
WITH expired AS MATERIALIZED (
    SELECT id FROM dayjob.jobs
    WHERE remove_at >= $4::bigint AND remove_at <= (SELECT dayjob.now_us($2))
    ORDER BY remove_at
    LIMIT $3
    FOR UPDATE SKIP LOCKED
),
removed AS (
    DELETE FROM dayjob.jobs WHERE id = ANY (ARRAY(SELECT id FROM expired))
    RETURNING queue, state, remove_at
),
:COUNT_REMOVED,
result AS MATERIALIZED (
    SELECT count(*) AS removed, ARRAY[count(*)::text, max(remove_at)::text] AS reply FROM removed
),
stored AS (:STORE WHERE removed > 0)
SELECT reply FROM result
