-- The next priority, after one, that a queue's pending jobs have.
SELECT min(priority) FROM dayjob_jobs INDEXED BY dayjob_pending
WHERE state = 'pending' AND queue_id = ? AND priority > ?
