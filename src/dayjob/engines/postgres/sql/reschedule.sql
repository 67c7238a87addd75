-- Change due time or priority of waiting jobs.
-- $1 token  $2 now  $3 ids  $4 due times  $5 priorities, each NULL to leave it as it is
-- Replies "id queue" for each that was waiting.
WITH clock AS MATERIALIZED (
    SELECT dayjob.now_us($2) AS now
),
waiting AS MATERIALIZED (
    SELECT jobs.id, jobs.state AS before, change.run_at, change.priority,
        CASE WHEN change.run_at IS NULL THEN jobs.state
            WHEN change.run_at > clock.now THEN 'scheduled' ELSE 'pending' END AS state
    FROM clock, unnest($3::uuid[], $4::bigint[], $5::bigint[]) AS change (id, run_at, priority)
    JOIN dayjob.jobs ON jobs.id = change.id
    WHERE jobs.state || '' IN ('pending', 'scheduled')
    FOR UPDATE OF jobs
),
saved AS (
    UPDATE dayjob.jobs
    SET run_at = coalesce(waiting.run_at, jobs.run_at), priority = coalesce(waiting.priority, jobs.priority),
        state = waiting.state, late = pg_current_xact_id()
    FROM waiting
    WHERE jobs.id = waiting.id
    RETURNING jobs.id, jobs.queue, waiting.before, waiting.state
),
counted AS (
    INSERT INTO dayjob.counters (queue, pending, scheduled)
    SELECT queue, count(*) FILTER (WHERE state = 'pending') - count(*) FILTER (WHERE before = 'pending'),
        count(*) FILTER (WHERE state = 'scheduled') - count(*) FILTER (WHERE before = 'scheduled')
    FROM saved
    GROUP BY queue
),
result AS MATERIALIZED (
    SELECT coalesce(array_agg(concat(id, ' ', queue)), '{}') AS reply FROM saved
),
stored AS (
    INSERT INTO dayjob.replies (token, reply) SELECT $1::uuid, reply FROM result
)
SELECT reply FROM result
