-- Apply each verdict whose claim is current, by the rules of the lifecycle.
-- $1 now  $2 token  $3… the verdicts, one array per part; a keep of -1 is for ever, 0 is not at all.
-- The state is tested where the planner does not take it for a reason to walk the index of leases.
-- Answers, for each that was applied, "id epoch state queue".
WITH clock AS MATERIALIZED (
    SELECT dayjob.now_us($1) AS now
),
current AS MATERIALIZED (
    SELECT jobs.id, jobs.epoch, jobs.queue, verdict.event, verdict.error, verdict.delay, verdict.result, verdict.progress,
        verdict.keep_done, verdict.keep_dead, verdict.keep_cancelled,
        CASE
            WHEN verdict.event = 'ack' THEN 'done'
            WHEN verdict.event = 'dead_letter' THEN 'dead'
            WHEN verdict.event = 'mark_cancelled' THEN 'cancelled'
            WHEN verdict.event = 'release' THEN 'pending'
            WHEN jobs.cancel_requested THEN 'cancelled'
            WHEN verdict.event = 'snooze' THEN 'scheduled'
            WHEN jobs.attempts >= jobs.max_attempts THEN 'dead'
            WHEN verdict.delay > 0 THEN 'scheduled'
            ELSE 'pending'
        END AS state
    FROM unnest(
        $3::uuid[], $4::integer[], $5::text[], $6::text[], $7::bigint[], $8::bytea[], $9::text[],
        $10::bigint[], $11::bigint[], $12::bigint[]
    ) AS verdict (id, epoch, event, error, delay, result, progress, keep_done, keep_dead, keep_cancelled)
    JOIN dayjob.jobs ON jobs.id = verdict.id
    WHERE jobs.epoch = verdict.epoch AND jobs.state || '' = 'running'
    FOR UPDATE OF jobs
),
kept AS MATERIALIZED (
    SELECT current.*, state IN ('done', 'dead', 'cancelled') AS finished,
        CASE state WHEN 'done' THEN keep_done WHEN 'dead' THEN keep_dead WHEN 'cancelled' THEN keep_cancelled
            ELSE -1 END AS keep
    FROM current
),
removed AS (
    DELETE FROM dayjob.jobs WHERE id = ANY (ARRAY(SELECT id FROM kept WHERE keep = 0))
),
saved AS (
    UPDATE dayjob.jobs
    SET state = kept.state,
        attempts = CASE WHEN kept.state IN ('pending', 'scheduled') AND kept.event IN ('release', 'snooze')
            THEN greatest(jobs.attempts - 1, 0) ELSE jobs.attempts END,
        run_at = CASE WHEN kept.finished OR kept.event = 'release' THEN jobs.run_at
            ELSE clock.now + kept.delay END,
        finished_at = CASE WHEN kept.finished THEN clock.now END,
        remove_at = CASE WHEN kept.keep > 0 THEN clock.now + kept.keep END,
        lease_expires_at = NULL,
        claimed_at = CASE WHEN kept.finished THEN jobs.claimed_at END,
        worker = CASE WHEN kept.finished THEN jobs.worker END,
        held_key = CASE WHEN kept.finished THEN NULL ELSE jobs.held_key END,
        result = CASE WHEN kept.finished THEN kept.result ELSE jobs.result END,
        progress = coalesce(kept.progress::jsonb, jobs.progress),
        last_error = coalesce(kept.error, jobs.last_error),
        errors = CASE WHEN kept.event IN ('nack', 'dead_letter')
            THEN (jobs.errors || jsonb_build_array(jobs.attempts, clock.now, jobs.worker, kept.error)::text)[greatest(cardinality(jobs.errors) - 8, 1):]
            ELSE jobs.errors END
    FROM clock, kept
    WHERE jobs.id = kept.id AND kept.keep <> 0
),
counted AS (
    INSERT INTO dayjob.counts (queue, running, pending, scheduled, done, dead, cancelled)
    SELECT queue, -count(*), count(*) FILTER (WHERE state = 'pending'),
        count(*) FILTER (WHERE state = 'scheduled'), count(*) FILTER (WHERE state = 'done'),
        count(*) FILTER (WHERE state = 'dead' AND keep <> 0),
        count(*) FILTER (WHERE state = 'cancelled' AND keep <> 0)
    FROM kept
    GROUP BY queue
),
answer AS MATERIALIZED (
    SELECT coalesce(array_agg(concat(id, ' ', epoch, ' ', state, ' ', queue)), '{}') AS told FROM kept
),
noted AS (
    INSERT INTO dayjob.batches (token, answer)
    SELECT $2::uuid, told FROM answer WHERE $2::uuid IS NOT NULL
)
SELECT told FROM answer
