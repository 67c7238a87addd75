-- Remove running jobs that succeeded and are not kept, if their claims are current.
-- $1 token  $2 ids  $3 claims, both as text, which is cheaper to encode  $4 their number
-- The state is compared as an expression: otherwise the planner walks the index of leases.
-- Replies NULL if all were removed, else "number done " for each that was, with its number in the batch.
WITH removed AS (
    DELETE FROM dayjob.jobs
    USING unnest($2::text::uuid[], $3::text::uuid[]) WITH ORDINALITY AS op (id, claim, number)
    WHERE jobs.id = op.id AND jobs.claim = op.claim AND jobs.state || '' = 'running'
    RETURNING op.number, jobs.queue
),
counted AS (
    INSERT INTO dayjob.counters (queue, running, done)
    SELECT queue, -count(*), count(*) FROM removed GROUP BY queue
),
result AS MATERIALIZED (
    SELECT CASE WHEN count(*) < $4 THEN coalesce(array_agg(concat(number, ' done ')), '{}') END AS reply
    FROM removed
),
stored AS (
    INSERT INTO dayjob.replies (token, reply) SELECT $1::uuid, reply FROM result
)
SELECT reply FROM result
