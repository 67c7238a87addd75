-- The job that holds a dedup key in a scope: a queue, or 0 for all queues.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_holders WHERE coalesce(dedup_scope, queue_id) = ? AND held_key = ?
