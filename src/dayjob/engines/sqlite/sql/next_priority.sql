-- The next priority and turn, after the given ones, among the pending jobs of a queue.
SELECT priority, turn FROM dayjob_jobs INDEXED BY dayjob_pending
WHERE state = 'pending' AND queue_id = ? AND (priority, turn) > (?, ?)
ORDER BY priority, turn
LIMIT 1
