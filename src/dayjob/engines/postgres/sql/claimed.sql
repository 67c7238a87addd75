-- Return the jobs of claims whose replies were lost.
-- $1 queues  $2 claims
SELECT :CLAIM_COLUMNS
FROM dayjob.jobs
WHERE state = 'running' AND claim = ANY ($2::uuid[])
ORDER BY array_position($1::text[], queue), priority, turn, id
