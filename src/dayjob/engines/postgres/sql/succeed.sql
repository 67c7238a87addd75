-- Remove running jobs that succeeded and are not kept: the fence, and nothing else.
-- $1 token  $2 ids  $3 epochs, both as text, which is cheaper to make  $4 how many
-- The state is tested where the planner does not take it for a reason to walk the index of leases.
-- Answers, unless it is all, for each that was removed, "id epoch done ".
WITH removed AS (
    DELETE FROM dayjob.jobs
    USING unnest($2::text::uuid[], $3::text::integer[]) AS verdict (id, epoch)
    WHERE jobs.id = verdict.id AND jobs.epoch = verdict.epoch AND jobs.state || '' = 'running'
    RETURNING jobs.id, jobs.epoch, jobs.queue
),
counted AS (
    INSERT INTO dayjob.counts (queue, running, done)
    SELECT queue, -count(*), count(*) FROM removed GROUP BY queue
),
answer AS MATERIALIZED (
    SELECT CASE WHEN count(*) < $4 THEN coalesce(array_agg(concat(id, ' ', epoch, ' done ')), '{}') END AS told
    FROM removed
),
noted AS (
    INSERT INTO dayjob.batches (token, answer)
    SELECT $1::uuid, told FROM answer WHERE $1::uuid IS NOT NULL
)
SELECT told FROM answer
