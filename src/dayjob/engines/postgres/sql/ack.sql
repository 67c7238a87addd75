-- Remove running jobs that succeeded and are not kept, if their claims are current.
-- $1 token  $2 ids  $3 epochs, both as text, which is cheaper to encode  $4 their number
-- The state is compared as an expression: otherwise the planner walks the index of leases.
-- Replies NULL if all were removed, else "id epoch done " for each that was.
WITH removed AS (
    DELETE FROM dayjob.jobs
    USING unnest($2::text::uuid[], $3::text::integer[]) AS op (id, epoch)
    WHERE jobs.id = op.id AND jobs.epoch = op.epoch AND jobs.state || '' = 'running'
    RETURNING jobs.id, jobs.epoch, jobs.queue
),
counted AS (
    INSERT INTO dayjob.counters (queue, running, done)
    SELECT queue, -count(*), count(*) FROM removed GROUP BY queue
),
result AS MATERIALIZED (
    SELECT CASE WHEN count(*) < $4 THEN coalesce(array_agg(concat(id, ' ', epoch, ' done ')), '{}') END AS reply
    FROM removed
),
stored AS (
    INSERT INTO dayjob.replies (token, reply) SELECT $1::uuid, reply FROM result
)
SELECT reply FROM result
