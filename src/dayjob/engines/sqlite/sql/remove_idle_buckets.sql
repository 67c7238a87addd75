-- Remove buckets without running jobs, arrival time and line.
DELETE FROM dayjob_buckets
WHERE name IN (SELECT name FROM dayjob_buckets WHERE running = 0 AND tat <= ? AND due_at IS NULL LIMIT ?)
