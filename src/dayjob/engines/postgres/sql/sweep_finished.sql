-- Remove those of the given jobs that finished long enough ago.
-- $1 token  $2 now  $3 ids  $4 state  $5 age  $6 the cursor after these jobs
-- State and time are compared as expressions: otherwise the planner walks another index.
-- Replies with their number and the cursor, which a repetition could not find again. Stores no reply if there are none.
WITH removed AS (
    DELETE FROM dayjob.jobs
    WHERE id = ANY ($3::uuid[]) AND state || '' = $4
        AND coalesce(finished_at <= (SELECT dayjob.now_us($2) - $5::bigint), false)
    RETURNING queue, state
),
:COUNT_REMOVED,
result AS MATERIALIZED (
    SELECT count(*) AS removed, ARRAY[count(*)::text, $6] AS reply FROM removed
),
stored AS (:STORE WHERE removed > 0)
SELECT reply FROM result
