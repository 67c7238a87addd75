-- Give waiting jobs, which this transaction has locked, the calls and due times of later ones.
-- $1 now  $2 ids  $3 tasks  $4 payloads  $5 headers  $6 tenants  $7 due times, or $8 delays  $9 the longest delays, or NULL
-- Returns topics as in the replies of settlements, and the second parameter of finish_limits.
WITH clock AS MATERIALIZED (
    SELECT dayjob.now_us($1) AS now
),
given AS MATERIALIZED (
    SELECT jobs.id, jobs.state AS before, jobs.limits, jobs.limited_by, call.task, call.payload, call.headers, call.tenant,
        least(coalesce(call.run_at, clock.now + call.delay, clock.now), jobs.enqueued_at + call.max_delay) AS due
    FROM clock, unnest(
        $2::text[]::uuid[], $3::text[], $4::bytea[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[]
    ) AS call (id, task, payload, headers, tenant, run_at, delay, max_delay)
    JOIN dayjob.jobs ON jobs.id = call.id
),
saved AS (
    UPDATE dayjob.jobs
    SET task = given.task, payload = given.payload, headers = given.headers::jsonb, tenant = given.tenant, run_at = given.due,
        state = CASE WHEN given.due > clock.now THEN 'scheduled' ELSE 'pending' END, limited_by = NULL,
        late = pg_current_xact_id()
    FROM clock, given
    WHERE jobs.id = given.id
    RETURNING jobs.queue, given.before, jobs.state, given.limits, given.limited_by
),
counted AS (
    INSERT INTO dayjob.counters (queue, pending, scheduled, limited)
    SELECT queue, count(*) FILTER (WHERE state = 'pending') - count(*) FILTER (WHERE before = 'pending'),
        count(*) FILTER (WHERE state = 'scheduled') - count(*) FILTER (WHERE before = 'scheduled'),
        -count(*) FILTER (WHERE before = 'limited')
    FROM saved
    GROUP BY queue
)
SELECT ARRAY(SELECT DISTINCT concat('0 ', state, ' ', queue) FROM saved),
    (
        SELECT array_agg(ROW(before, limits, limited_by, NULL)::dayjob.departure)::text
        FROM saved
        WHERE limits IS NOT NULL AND before <> state
    )
