-- Return ids of pending jobs in id order, merged from ranges of the index.
-- $1 queues and $2 priorities of the ranges  $3 the first id  $4 an id to leave out  $5 limit
-- The engine reverses comparisons and ASC to list the newest first.
-- The conditions form one range of the index, so that the planner finds no other plan cheaper.
SELECT job.id
FROM unnest($1::text[], $2::bigint[]) AS range (queue, priority)
CROSS JOIN LATERAL (
    SELECT jobs.id FROM dayjob.jobs
    WHERE (jobs.queue, jobs.priority, jobs.id) >= (range.queue, range.priority, $3::uuid)
        AND (jobs.queue, jobs.priority) <= (range.queue, range.priority)
        AND jobs.id IS DISTINCT FROM $4::uuid AND jobs.state = 'pending'
    ORDER BY jobs.queue ASC, jobs.priority ASC, jobs.id ASC
    LIMIT $5
) AS job
ORDER BY job.id ASC
LIMIT $5
