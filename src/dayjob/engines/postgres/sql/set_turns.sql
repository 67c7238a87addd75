-- Correct the turns of new jobs: an earlier job of the batch was not stored.
-- $1 ids, as text  $2 turns
UPDATE dayjob.jobs SET turn = ($2::bigint[])[array_position($1::text[]::uuid[], id)]
WHERE id = ANY ($1::text[]::uuid[])
