-- The next priority, after the given one, among the pending jobs of a queue.
SELECT min(priority) FROM dayjob_jobs INDEXED BY dayjob_pending
WHERE state = 'pending' AND queue_id = ? AND priority > ?
