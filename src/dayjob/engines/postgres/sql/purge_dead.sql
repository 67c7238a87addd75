-- Remove those of the given jobs that are dead.
-- $1 token  $2 ids
-- Replies with their number.
WITH removed AS (
    DELETE FROM dayjob.jobs
    WHERE id = ANY ($2::uuid[]) AND state || '' = 'dead'
    RETURNING queue
),
counted AS (
    INSERT INTO dayjob.counters (queue, dead)
    SELECT queue, -count(*) FROM removed GROUP BY queue
),
result AS MATERIALIZED (
    SELECT ARRAY[count(*)::text] AS reply FROM removed
),
stored AS (:STORE)
SELECT reply FROM result
