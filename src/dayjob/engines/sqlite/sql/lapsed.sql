-- Claims whose lease has expired.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_leases
WHERE state = 'running' AND lease_expires_at <= ?
ORDER BY lease_expires_at
LIMIT ?
