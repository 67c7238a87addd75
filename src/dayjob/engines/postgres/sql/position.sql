-- Count the jobs that precede a pending job in its queue, or a limited job in its line.
-- $1 id  $2 the most that are counted
-- The state of the job itself is compared as an expression: otherwise the planner walks another index.
SELECT (
    SELECT count(*)
    FROM dayjob.jobs AS job
    CROSS JOIN LATERAL (
        SELECT FROM dayjob.jobs
        WHERE jobs.queue = job.queue AND jobs.state = 'pending'
            AND (jobs.priority, jobs.turn, jobs.id) < (job.priority, job.turn, job.id)
        ORDER BY jobs.priority, jobs.turn, jobs.id
        LIMIT $2
    ) AS before
    WHERE job.id = $1::uuid AND job.state || '' = 'pending'
) + (
    SELECT count(*)
    FROM dayjob.jobs AS job
    CROSS JOIN LATERAL (
        SELECT FROM dayjob.jobs
        WHERE jobs.limited_by = job.limited_by AND jobs.queue = job.queue AND jobs.state = 'limited'
            AND (jobs.priority, jobs.turn, jobs.id) < (job.priority, job.turn, job.id)
        ORDER BY jobs.priority, jobs.turn, jobs.id
        LIMIT $2
    ) AS before
    WHERE job.id = $1::uuid AND job.state || '' = 'limited'
)
