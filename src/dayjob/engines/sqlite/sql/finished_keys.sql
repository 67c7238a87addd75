-- The ids of a queue's finished jobs in one state, in id order.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_finished
WHERE state IN ('done', 'dead', 'cancelled') AND state = ? AND queue_id = ? AND id > ?
ORDER BY id
LIMIT ?
