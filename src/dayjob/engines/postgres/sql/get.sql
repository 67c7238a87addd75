-- Return full records by id.
-- $1 ids
SELECT id, queue, task, payload, headers, tenant, priority, state, attempts, max_attempts, epoch, enqueued_at,
    run_at, claimed_at, lease_expires_at, finished_at, expires_at, last_error, errors, dedup_key, dedup_until,
    cancel_requested, worker, result, progress
FROM dayjob.jobs
WHERE id = ANY ($1::uuid[])
