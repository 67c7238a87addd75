-- Return ids of dead jobs of one queue, the latest failure first.
-- $1, $2 exclusive cursor: finish time and id  $3 limit  $4 queue
-- The index has the condition queue <> '', which all jobs meet, so that latest_dead.sql can't walk and sort it.
SELECT id FROM dayjob.jobs
WHERE state = 'dead' AND queue = $4 AND queue <> '' AND (finished_at, id) < ($1, $2::uuid)
ORDER BY finished_at DESC, id DESC
LIMIT $3
