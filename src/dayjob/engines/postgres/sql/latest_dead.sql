-- Return ids of dead jobs of all queues, the latest failure first.
-- $1, $2 exclusive cursor: finish time and id  $3 limit
SELECT id FROM dayjob.jobs
WHERE state = 'dead' AND (finished_at, id) < ($1, $2::uuid)
ORDER BY finished_at DESC, id DESC
LIMIT $3
