-- Apply each settlement whose claim is current, by the rules of the lifecycle.
-- $1 token, or NULL  $2 now  $3… the settlements, one array per column; with retention 0 the job is not kept
-- The state is compared as an expression: otherwise the planner walks the index of leases.
-- Replies "number state queue" for each that was applied, with its number in the batch. Without a token, the transaction
-- continues: the second column is for finish_limits.
WITH :CLOCK,
current AS MATERIALIZED (
    SELECT op.number, jobs.id, jobs.queue, jobs.limits, op.charges, op.transition, op.error, op.delay, op.result, op.progress,
        op.retain_done, op.retain_dead, op.retain_cancelled,
        coalesce(op.max_attempts, jobs.max_attempts) AS max_attempts,
        CASE
            WHEN op.transition = 'ack' THEN 'done'
            WHEN op.transition = 'dead_letter' THEN 'dead'
            WHEN op.transition = 'mark_cancelled' THEN 'cancelled'
            WHEN op.transition = 'release' THEN 'pending'
            WHEN jobs.cancel_requested THEN 'cancelled'
            WHEN op.transition = 'snooze' THEN 'scheduled'
            WHEN jobs.attempts >= coalesce(op.max_attempts, jobs.max_attempts) THEN 'dead'
            WHEN op.delay > 0 THEN 'scheduled'
            ELSE 'pending'
        END AS state
    FROM unnest(
        $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::bigint[], $8::bytea[], $9::text[],
        $10::bigint[], $11::bigint[], $12::bigint[], $13::integer[], $14::integer[], $15::text[]
    ) AS op (
        id, claim, transition, error, delay, result, progress, retain_done, retain_dead, retain_cancelled, max_attempts,
        number, charges
    )
    JOIN dayjob.jobs ON jobs.id = ANY (ARRAY[op.id])
    WHERE jobs.claim = op.claim AND jobs.state || '' = 'running'
    FOR UPDATE OF jobs
),
settled AS MATERIALIZED (
    SELECT current.*, state IN ('done', 'dead', 'cancelled') AS finished,
        CASE state WHEN 'done' THEN retain_done WHEN 'dead' THEN retain_dead WHEN 'cancelled' THEN retain_cancelled
            ELSE :FOREVER END AS retention
    FROM current
),
removed AS (
    DELETE FROM dayjob.jobs WHERE id = ANY (ARRAY(SELECT id FROM settled WHERE retention = 0))
),
saved AS (
    UPDATE dayjob.jobs
    SET state = settled.state,
        attempts = CASE WHEN settled.state IN ('pending', 'scheduled') AND settled.transition IN ('release', 'snooze')
            THEN greatest(jobs.attempts - 1, 0) ELSE jobs.attempts END,
        max_attempts = settled.max_attempts,
        run_at = CASE WHEN settled.finished OR settled.transition = 'release' THEN jobs.run_at
            ELSE clock.now + settled.delay END,
        finished_at = CASE WHEN settled.finished THEN clock.now END,
        remove_at = CASE WHEN settled.retention > 0 THEN clock.now + settled.retention END,
        lease_expires_at = NULL,
        claimed_at = CASE WHEN settled.finished THEN jobs.claimed_at END,
        worker = CASE WHEN settled.finished THEN jobs.worker END,
        late = CASE WHEN settled.state = 'pending' THEN pg_current_xact_id() ELSE jobs.late END,
        held_key = CASE WHEN settled.finished THEN NULL ELSE jobs.held_key END,
        result = CASE WHEN settled.finished THEN settled.result ELSE jobs.result END,
        progress = coalesce(settled.progress::jsonb, jobs.progress),
        last_error = coalesce(settled.error, jobs.last_error),
        errors = CASE WHEN settled.transition IN ('nack', 'dead_letter')
            THEN (jobs.errors || jsonb_build_array(jobs.attempts, clock.now, jobs.worker, settled.error)::text)[greatest(cardinality(jobs.errors) + 2 - :ERRORS_KEPT, 1):]
            ELSE jobs.errors END
    FROM clock, settled
    WHERE jobs.id = ANY (ARRAY[settled.id]) AND settled.retention <> 0
),
counted AS (
    INSERT INTO dayjob.counters (queue, running, pending, scheduled, done, dead, cancelled)
    SELECT queue, -count(*), count(*) FILTER (WHERE state = 'pending'),
        count(*) FILTER (WHERE state = 'scheduled'), count(*) FILTER (WHERE state = 'done'),
        count(*) FILTER (WHERE state = 'dead' AND retention <> 0),
        count(*) FILTER (WHERE state = 'cancelled' AND retention <> 0)
    FROM settled
    GROUP BY queue
),
departed AS MATERIALIZED (
    SELECT coalesce(array_agg(concat(number, ' ', state, ' ', queue)), '{}') AS reply,
        array_agg(ROW('running', limits, NULL, charges)::dayjob.departure ORDER BY number) FILTER (WHERE limits IS NOT NULL) AS jobs
    FROM settled
),
woken AS MATERIALIZED (
    SELECT CASE WHEN jobs IS NOT NULL AND $1::uuid IS NOT NULL THEN dayjob.leave_limits($2, jobs) ELSE '{}' END AS topics
    FROM departed
),
result AS MATERIALIZED (
    SELECT reply || topics AS reply, jobs::text AS departed FROM departed, woken
),
stored AS (:STORE WHERE $1::uuid IS NOT NULL)
SELECT reply, departed FROM result
