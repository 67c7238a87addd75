-- Count the pending jobs of its queue that precede a pending job.
-- $1 id  $2 the most that are counted
-- The state of the job itself is compared as an expression: otherwise the planner walks the index of pending jobs.
SELECT count(*)
FROM dayjob.jobs AS job
CROSS JOIN LATERAL (
    SELECT FROM dayjob.jobs
    WHERE jobs.queue = job.queue AND jobs.state = 'pending'
        AND (jobs.priority, jobs.id) < (job.priority, job.id)
    ORDER BY jobs.priority, jobs.id
    LIMIT $2
) AS before
WHERE job.id = $1::uuid AND job.state || '' = 'pending'
