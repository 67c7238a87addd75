-- The ids of a queue's finished jobs in one state, in id order or, with < and DESC, newest first.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_finished
WHERE finished_at IS NOT NULL AND state = ? AND queue_id = ? AND id {beyond} ?
ORDER BY id {order}
LIMIT ?
