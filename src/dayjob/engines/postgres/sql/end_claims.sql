-- End claims whose lease has expired, or claims of dead workers: their jobs run again, or are dead without attempts left.
-- $1 token  $2 now  $3 limit  $4 queues  $5 their retention  $6 the retention of other queues  $7 error
-- $8 dead workers, or NULL for leases that had expired at $9 and now. NULL: now.
-- The last attempt of a job whose error is not of :CRASHES does not count: another job may have ended the worker.
-- The jobs of dead workers are found by a walk over the running jobs in lease order: workers seldom die.
-- Replies with each job as a JSON list: id, queue, task, old state, new state, attempts. Stores no reply if there are none.
WITH :CLOCK,
locked AS MATERIALIZED (
    SELECT id, queue, task, limits, attempts, attempts >= max_attempts AS last,
        attempts >= max_attempts AND (max_attempts = 1 OR coalesce(last_error, '') IN (:CRASHES)) AS dead
    FROM dayjob.jobs
    WHERE state = 'running' AND ($8::text[] IS NULL OR worker = ANY ($8::text[]))
        AND lease_expires_at <= (SELECT CASE WHEN $8::text[] IS NULL THEN least($9::bigint, now) ELSE :LAST_TIME END FROM clock)
    ORDER BY lease_expires_at
    LIMIT $3
    FOR UPDATE SKIP LOCKED
),
ended AS MATERIALIZED (
    SELECT id, queue, task, limits, CASE WHEN dead THEN 'dead' ELSE 'pending' END AS state,
        CASE WHEN last AND NOT dead THEN attempts - 1 ELSE attempts END AS attempts,
        CASE WHEN dead THEN coalesce(($5::bigint[])[array_position($4::text[], queue)], $6) ELSE :FOREVER END AS retention
    FROM locked
),
removed AS (
    DELETE FROM dayjob.jobs WHERE id = ANY (ARRAY(SELECT id FROM ended WHERE retention = 0))
),
saved AS (
    UPDATE dayjob.jobs
    SET state = ended.state, attempts = ended.attempts, late = pg_current_xact_id(), lease_expires_at = NULL, last_error = $7,
        errors = (jobs.errors || jsonb_build_array(jobs.attempts, clock.now, jobs.worker, $7::text)::text)[greatest(cardinality(jobs.errors) + 2 - :ERRORS_KEPT, 1):],
        finished_at = CASE WHEN ended.state = 'dead' THEN clock.now END,
        remove_at = CASE WHEN ended.retention > 0 THEN clock.now + ended.retention END,
        held_key = CASE WHEN ended.state = 'dead' THEN NULL ELSE jobs.held_key END,
        claimed_at = CASE WHEN ended.state = 'dead' THEN jobs.claimed_at END,
        worker = CASE WHEN ended.state = 'dead' THEN jobs.worker END
    FROM clock, ended
    WHERE jobs.id = ANY (ARRAY[ended.id]) AND ended.retention <> 0
),
counted AS (
    INSERT INTO dayjob.counters (queue, running, pending, dead)
    SELECT queue, -count(*), count(*) FILTER (WHERE state = 'pending'),
        count(*) FILTER (WHERE state = 'dead' AND retention <> 0)
    FROM ended
    GROUP BY queue
),
:DEPARTED,
:WOKEN,
result AS MATERIALIZED (
    SELECT coalesce(array_agg(json_build_array(id, queue, task, 'running', state, attempts)::text), '{}') || (SELECT topics FROM woken) AS reply
    FROM ended
),
stored AS (:STORE WHERE reply <> '{}')
SELECT reply FROM result
