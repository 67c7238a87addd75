-- Make dead jobs pending again.
-- $1 token  $2 now  $3 ids
-- Replies with each that was dead as a JSON list: id, queue, task, old state, new state, attempts.
WITH :CLOCK,
saved AS (
    UPDATE dayjob.jobs
    SET state = 'pending', late = pg_current_xact_id(), attempts = 0, run_at = clock.now, last_error = NULL, finished_at = NULL, remove_at = NULL,
        expires_at = NULL, cancel_requested = false, claimed_at = NULL, lease_expires_at = NULL, worker = NULL
    FROM clock
    WHERE id = ANY ($3::uuid[]) AND state || '' = 'dead'
    RETURNING id, queue, task
),
counted AS (
    INSERT INTO dayjob.counters (queue, dead, pending)
    SELECT queue, -count(*), count(*) FROM saved GROUP BY queue
),
result AS MATERIALIZED (
    SELECT coalesce(array_agg(json_build_array(id, queue, task, 'dead', 'pending', 0)::text), '{}') AS reply FROM saved
),
stored AS (:STORE)
SELECT reply FROM result
