-- The ids of a queue's pending jobs of one priority and turn, in id order or newest first.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_pending
WHERE state = 'pending' AND queue_id = ? AND priority = ? AND turn = ? AND id {beyond} ?
ORDER BY id {order}
LIMIT ?
