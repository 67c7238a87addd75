-- Return ids of pending jobs in id order, merged from ranges of the index.
-- $1 queues, $2 priorities and $3 turns of the ranges  $4 the first id  $5 an id to leave out  $6 limit
-- The engine reverses comparisons and ASC to list the newest first.
-- The conditions form one range of the index, so that the planner finds no other plan cheaper.
SELECT job.id
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS range (queue, priority, turn)
CROSS JOIN LATERAL (
    SELECT jobs.id FROM dayjob.jobs
    WHERE (jobs.queue, jobs.priority, jobs.turn, jobs.id) >= (range.queue, range.priority, range.turn, $4::uuid)
        AND (jobs.queue, jobs.priority, jobs.turn) <= (range.queue, range.priority, range.turn)
        AND jobs.id IS DISTINCT FROM $5::uuid AND jobs.state = 'pending'
    ORDER BY jobs.queue ASC, jobs.priority ASC, jobs.turn ASC, jobs.id ASC
    LIMIT $6
) AS job
ORDER BY job.id ASC
LIMIT $6
