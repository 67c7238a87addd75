-- The time at which the next scheduled job is due, and the time at which the next waiting job expires.
SELECT
    (SELECT min(run_at) FROM dayjob_jobs INDEXED BY dayjob_due WHERE state = 'scheduled'),
    (
        SELECT min(expires_at) FROM dayjob_jobs INDEXED BY dayjob_expiries
        WHERE expires_at IS NOT NULL AND attempts = 0 AND state IN ('pending', 'scheduled')
    )
