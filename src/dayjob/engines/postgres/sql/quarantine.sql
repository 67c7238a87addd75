-- End claimed jobs that can't be decoded as dead, without retention: they are kept until they are purged.
-- $1 now  $2 claim  $3 ids  $4 errors
-- Stores no reply: a repetition finds no current claim. Returns the topics of leave_limits.
WITH :CLOCK_FIRST,
ended AS (
    UPDATE dayjob.jobs
    SET state = 'dead', attempts = greatest(attempts - 1, 0), finished_at = clock.now, lease_expires_at = NULL,
        remove_at = NULL, held_key = NULL, last_error = corrupt.error,
        errors = (errors || jsonb_build_array(attempts, clock.now, worker, corrupt.error)::text)[greatest(cardinality(errors) + 2 - :ERRORS_KEPT, 1):]
    FROM clock, unnest($3::uuid[], $4::text[]) AS corrupt (id, error)
    WHERE jobs.id = ANY (ARRAY[corrupt.id]) AND jobs.claim = $2 AND jobs.state || '' = 'running'
    RETURNING queue, limits
),
counted AS (
    INSERT INTO dayjob.counters (queue, running, dead)
    SELECT queue, -count(*), count(*) FROM ended GROUP BY queue
),
:DEPARTED
SELECT CASE WHEN jobs IS NOT NULL THEN dayjob.leave_limits($1, jobs) ELSE '{}' END FROM departed
