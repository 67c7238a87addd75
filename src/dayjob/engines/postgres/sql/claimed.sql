-- Return the jobs of claims whose replies were lost.
-- $1 queues  $2 claims
SELECT id, queue, task, payload, headers, tenant, priority, attempts, max_attempts, epoch, enqueued_at, run_at,
    claimed_at, lease_expires_at, expires_at, last_error, cancel_requested, 0
FROM dayjob.jobs
WHERE state = 'running' AND claim = ANY ($2::uuid[])
ORDER BY array_position($1::text[], queue), priority, id
