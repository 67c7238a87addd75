-- The ids of a queue's pending jobs of one priority, newest first.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_pending
WHERE state = 'pending' AND queue_id = ? AND priority = ? AND id < ?
ORDER BY id DESC
LIMIT ?
