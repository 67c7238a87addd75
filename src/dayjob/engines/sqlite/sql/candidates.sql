-- The next jobs of a queue, in order, with the fields that a run needs. Jobs that expired before their first
-- run are left to promote.
SELECT
    id, task, payload, headers, tenant, priority, attempts, max_attempts, epoch, enqueued_at, run_at,
    expires_at, last_error, cancel_requested
FROM dayjob_jobs
WHERE state = 'pending' AND queue_id = ? AND (expires_at IS NULL OR expires_at > ? OR attempts > 0)
ORDER BY priority, id
LIMIT ?
