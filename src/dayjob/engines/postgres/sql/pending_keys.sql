-- Ids of pending jobs in id order, merged from the runs of the index.
-- $1 queues and $2 priorities of the runs  $3 from which id on  $4 but for this one  $5 limit
-- The conditions are put as one range of the index, so that nothing else is thought to be cheaper.
SELECT job.id
FROM unnest($1::text[], $2::bigint[]) AS run (queue, priority)
CROSS JOIN LATERAL (
    SELECT jobs.id FROM dayjob.jobs
    WHERE (jobs.queue, jobs.priority, jobs.id) >= (run.queue, run.priority, $3::uuid)
        AND (jobs.queue, jobs.priority) <= (run.queue, run.priority)
        AND jobs.id IS DISTINCT FROM $4::uuid AND jobs.state = 'pending'
    ORDER BY jobs.queue, jobs.priority, jobs.id
    LIMIT $5
) AS job
ORDER BY job.id
LIMIT $5
