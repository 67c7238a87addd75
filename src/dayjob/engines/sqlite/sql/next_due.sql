-- The times at which the next scheduled job is due, the next waiting job expires, and the next line is due.
SELECT
    (SELECT min(run_at) FROM dayjob_jobs INDEXED BY dayjob_due WHERE state = 'scheduled'),
    (
        SELECT min(expires_at) FROM dayjob_jobs INDEXED BY dayjob_expiries
        WHERE expires_at IS NOT NULL AND attempts = 0 AND state IN ('pending', 'scheduled', 'limited')
    ),
    (SELECT min(due_at) FROM dayjob_buckets INDEXED BY dayjob_due_buckets WHERE due_at IS NOT NULL)
