-- Change due time or priority of waiting jobs.
-- $1 token  $2 now  $3 ids  $4 due times  $5 priorities, each NULL to leave it as it is
-- Replies "id queue" for each that was waiting.
WITH :CLOCK,
waiting AS MATERIALIZED (
    SELECT jobs.id, jobs.state AS before, jobs.limits, jobs.limited_by, change.run_at, change.priority,
        CASE WHEN change.run_at IS NULL THEN CASE jobs.state WHEN 'limited' THEN 'pending' ELSE jobs.state END
            WHEN change.run_at > clock.now THEN 'scheduled' ELSE 'pending' END AS state
    FROM clock, unnest($3::uuid[], $4::bigint[], $5::bigint[]) AS change (id, run_at, priority)
    JOIN dayjob.jobs ON jobs.id = ANY (ARRAY[change.id])
    WHERE jobs.state || '' IN ('pending', 'scheduled', 'limited')
    FOR UPDATE OF jobs
),
saved AS (
    UPDATE dayjob.jobs
    SET run_at = coalesce(waiting.run_at, jobs.run_at), priority = coalesce(waiting.priority, jobs.priority),
        state = waiting.state, limited_by = NULL, late = pg_current_xact_id()
    FROM waiting
    WHERE jobs.id = ANY (ARRAY[waiting.id])
    RETURNING jobs.id, jobs.queue, waiting.before, waiting.state, waiting.limits, waiting.limited_by
),
:COUNT_MOVED,
departed AS MATERIALIZED (
    SELECT coalesce(array_agg(concat(id, ' ', queue)), '{}') AS reply,
        array_agg(ROW(before, limits, limited_by, NULL)::dayjob.departure)
            FILTER (WHERE limits IS NOT NULL AND before <> state) AS jobs
    FROM saved
),
:WOKEN,
result AS MATERIALIZED (
    SELECT reply || topics AS reply FROM departed, woken
),
stored AS (:STORE)
SELECT reply FROM result
