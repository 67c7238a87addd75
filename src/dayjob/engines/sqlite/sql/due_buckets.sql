-- Buckets whose next line is due.
SELECT name FROM dayjob_buckets INDEXED BY dayjob_due_buckets
WHERE due_at IS NOT NULL AND due_at <= ?
ORDER BY due_at, name
LIMIT ?
