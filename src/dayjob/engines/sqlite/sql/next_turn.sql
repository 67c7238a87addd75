-- The turn of the next job of a tenant: that of its queue, or a later one.
SELECT max(turn, coalesce((SELECT turn FROM dayjob_turns WHERE queue_id = ? AND tenant = ?), 1))
FROM dayjob_queues
WHERE id = ?
