-- Count the pending jobs that precede a pending job of the same queue. The limit is in the subquery, so that
-- no more than that many are counted.
SELECT count(*)
FROM (
    SELECT 1
    FROM dayjob_jobs AS job CROSS JOIN dayjob_jobs AS first INDEXED BY dayjob_pending
    WHERE
        job.id = ? AND job.state = 'pending'
        AND first.state = 'pending' AND first.queue_id = job.queue_id
        AND (first.priority, first.id) < (job.priority, job.id)
    LIMIT ?
)
