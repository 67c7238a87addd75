-- Open the windows of dedup keys for new jobs, unless they are open.
-- $1 now  $2 names of the windows  $3 ids of the jobs  $4 durations
-- Returns the ids of the jobs whose windows were opened. A window is a row with a primary key, so that of two concurrent
-- statements one waits for the commit of the other. Of the jobs with one key, the first opens it.
WITH :CLOCK_FIRST
INSERT INTO dayjob.reserved_ids (id, reserved_until, job)
SELECT DISTINCT ON (given.name) given.name, clock.now + given.duration, given.job
FROM clock, unnest($2::text[]::uuid[], $3::text[]::uuid[], $4::bigint[]) WITH ORDINALITY AS given (name, job, duration, number)
ORDER BY given.name, given.number
ON CONFLICT (id) DO UPDATE SET reserved_until = excluded.reserved_until, job = excluded.job
WHERE reserved_ids.reserved_until <= (SELECT now FROM clock)
RETURNING job::text
