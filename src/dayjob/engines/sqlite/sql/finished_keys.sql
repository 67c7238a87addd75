-- The ids of a queue's finished jobs in one state, in id order.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_finished
WHERE finished_at IS NOT NULL AND state = ? AND queue_id = ? AND id > ?
ORDER BY id
LIMIT ?
