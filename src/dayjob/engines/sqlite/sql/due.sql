-- Scheduled jobs that are due.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_due
WHERE state = 'scheduled' AND run_at <= ?
ORDER BY run_at
LIMIT ?
