-- Give waiting jobs, which this transaction has locked, the calls and due times of later ones.
-- $1 now  $2 ids  $3 due times, or $4 delays  $5 the longest delays, or NULL  from $6 on the fields of the calls
-- Returns topics as in the replies of settlements, and the second parameter of finish_limits.
WITH :CLOCK_FIRST,
given AS MATERIALIZED (
    SELECT jobs.id, jobs.state AS before, jobs.limits, jobs.limited_by, :CALL_FIELDS,
        least(coalesce(call.run_at, clock.now + call.delay, clock.now), jobs.enqueued_at + call.max_delay) AS due
    FROM clock, unnest($2::text[]::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], :CALL_ARRAYS)
        AS call (id, run_at, delay, max_delay, :CALL_NAMES)
    JOIN dayjob.jobs ON jobs.id = ANY (ARRAY[call.id])
),
saved AS (
    UPDATE dayjob.jobs
    SET :CALL_VALUES, run_at = given.due,
        state = CASE WHEN given.due > clock.now THEN 'scheduled' ELSE 'pending' END, limited_by = NULL,
        late = pg_current_xact_id()
    FROM clock, given
    WHERE jobs.id = ANY (ARRAY[given.id])
    RETURNING jobs.queue, given.before, jobs.state, given.limits, given.limited_by
),
:COUNT_MOVED
SELECT ARRAY(SELECT DISTINCT concat('0 ', state, ' ', queue) FROM saved),
    (
        SELECT array_agg(ROW(before, limits, limited_by, NULL)::dayjob.departure)::text
        FROM saved
        WHERE limits IS NOT NULL AND before <> state
    )
