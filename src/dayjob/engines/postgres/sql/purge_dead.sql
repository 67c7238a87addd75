-- Remove those of the given jobs that are dead.
-- $1 token  $2 ids
-- Answers how many.
WITH removed AS (
    DELETE FROM dayjob.jobs
    WHERE id = ANY ($2::uuid[]) AND state || '' = 'dead'
    RETURNING queue
),
counted AS (
    INSERT INTO dayjob.counts (queue, dead)
    SELECT queue, -count(*) FROM removed GROUP BY queue
),
answer AS MATERIALIZED (
    SELECT ARRAY[count(*)::text] AS told FROM removed
),
noted AS (
    INSERT INTO dayjob.batches (token, answer)
    SELECT $1::uuid, told FROM answer WHERE $1::uuid IS NOT NULL
)
SELECT told FROM answer
