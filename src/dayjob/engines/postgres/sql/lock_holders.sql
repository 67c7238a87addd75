-- Lock the holders of dedup keys, in the order given.
-- $1 ids  $2 the keys that they held
-- Returns those that hold their keys, each with whether it waits. "coalesce" keeps the planner from the index of holders.
SELECT jobs.id::text, jobs.state || '' IN ('pending', 'scheduled', 'limited')
FROM unnest($1::text[]::uuid[], $2::text[]) AS given (id, dedup_key)
JOIN dayjob.jobs ON jobs.id = given.id
WHERE coalesce(jobs.held_key, '') = given.dedup_key
FOR UPDATE OF jobs
