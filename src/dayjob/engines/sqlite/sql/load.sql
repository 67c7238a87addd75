-- The changeable part of jobs, in the order of Record's fields.
SELECT
    id, queue_id, state, priority, attempts, max_attempts, epoch, run_at, claimed_at, lease_expires_at,
    finished_at, expires_at, remove_at, last_error, errors, held_key, dedup_until, cancel_requested, worker,
    result
FROM dayjob_jobs
WHERE id IN ({keys})
