-- Finished jobs whose time of removal has come.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_removals
WHERE remove_at IS NOT NULL AND remove_at <= ?
ORDER BY remove_at
LIMIT ?
