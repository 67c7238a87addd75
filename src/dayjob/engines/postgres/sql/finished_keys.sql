-- Return ids of finished jobs in id order, each queue by its own range of the index.
-- $1 state  $2 queues, NULL for all  $3 the first id  $4 an id to leave out  $5 limit
-- The engine reverses comparisons and ASC to list the newest first.
-- The conditions form one range of the index, so that the planner finds no other plan cheaper.
SELECT job.id
FROM (
    SELECT queue FROM unnest($2::text[]) AS queue
    UNION
    SELECT counters.queue FROM dayjob.counters WHERE $2::text[] IS NULL
) AS wanted
CROSS JOIN LATERAL (
    SELECT jobs.id FROM dayjob.jobs
    WHERE (jobs.state, jobs.queue, jobs.id) >= ($1, wanted.queue, $3::uuid)
        AND (jobs.state, jobs.queue) <= ($1, wanted.queue)
        AND jobs.id IS DISTINCT FROM $4::uuid AND jobs.finished_at IS NOT NULL
    ORDER BY jobs.state ASC, jobs.queue ASC, jobs.id ASC
    LIMIT $5
) AS job
ORDER BY job.id ASC
LIMIT $5
