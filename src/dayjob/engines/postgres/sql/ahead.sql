-- How many pending jobs of its queue go before a pending job.
-- $1 id  $2 how many are counted at most
-- The job's own state is tested where the planner does not take it for a reason to walk the index of pending jobs.
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
