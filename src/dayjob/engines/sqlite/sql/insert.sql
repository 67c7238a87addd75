-- Store jobs, except those whose id exists or whose dedup key is held.
INSERT INTO dayjob_jobs (
    id, queue_id, state, priority, max_attempts, enqueued_at, run_at, expires_at,
    held_key, dedup_key, dedup_until, task, tenant, headers, payload
)
VALUES {rows}
ON CONFLICT DO NOTHING
