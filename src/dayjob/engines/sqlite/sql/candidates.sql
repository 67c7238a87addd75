-- The next jobs of a queue, in order, with the fields that a run needs. Jobs that expired before their first
-- run are left to promote.
SELECT :CLAIM_COLUMNS
FROM dayjob_jobs
WHERE state = 'pending' AND queue_id = ? AND (expires_at IS NULL OR expires_at > ? OR attempts > 0)
ORDER BY priority, turn, id
LIMIT ?
