-- Waiting jobs that expired before their first run.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_expiries
WHERE expires_at IS NOT NULL AND attempts = 0 AND state IN ('pending', 'scheduled', 'limited') AND expires_at <= ?
ORDER BY expires_at
LIMIT ?
