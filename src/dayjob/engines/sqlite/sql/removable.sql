-- Finished jobs whose retention is over.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_removals
WHERE remove_at IS NOT NULL AND remove_at <= ?
ORDER BY remove_at
LIMIT ?
