-- Correct the turns of new jobs: an earlier job of the batch was not stored.
-- $1 ids, as text  $2 turns
UPDATE dayjob.jobs SET turn = given.turn
FROM unnest($1::text[], $2::bigint[]) AS given (id, turn)
WHERE jobs.id = given.id::uuid
