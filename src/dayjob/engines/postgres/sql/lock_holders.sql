-- Lock the holders of dedup keys, in the order given.
-- $1 ids  $2 the keys that they held
-- Returns those that hold their keys, each with whether it waits. "coalesce" keeps the planner from the index of holders.
SELECT holder.id, holder.waits
FROM unnest($1::text[]::uuid[], $2::text[]) AS given (id, dedup_key)
CROSS JOIN LATERAL (
    SELECT jobs.id::text, jobs.state || '' IN ('pending', 'scheduled', 'limited') AS waits
    FROM dayjob.jobs
    WHERE jobs.id = given.id AND coalesce(jobs.held_key, '') = given.dedup_key
    FOR UPDATE
) AS holder
