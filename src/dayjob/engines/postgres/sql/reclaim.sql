-- End claims of workers that are gone: their jobs run again, or are dead when no attempt is left.
-- $1 now  $2 limit  $3 queues  $4 their keeps  $5 the keep of any other queue  $6 the reason  $7 workers
-- Answers, for each, its id, its new state and its queue.
-- Walks the running jobs in the order of their leases: workers are seldom gone.
WITH clock AS MATERIALIZED (
    SELECT dayjob.now_us($1) AS now
),
lapsed AS MATERIALIZED (
    SELECT id, queue, CASE WHEN attempts >= max_attempts THEN 'dead' ELSE 'pending' END AS state,
        CASE WHEN attempts >= max_attempts
            THEN coalesce(($4::bigint[])[array_position($3::text[], queue)], $5) ELSE -1 END AS keep
    FROM dayjob.jobs
    WHERE state = 'running' AND worker = ANY ($7::text[])
    ORDER BY lease_expires_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
),
removed AS (
    DELETE FROM dayjob.jobs WHERE id = ANY (ARRAY(SELECT id FROM lapsed WHERE keep = 0))
),
saved AS (
    UPDATE dayjob.jobs
    SET state = lapsed.state, lease_expires_at = NULL, last_error = $6,
        errors = (jobs.errors || jsonb_build_array(jobs.attempts, clock.now, jobs.worker, $6::text)::text)[greatest(cardinality(jobs.errors) - 8, 1):],
        finished_at = CASE WHEN lapsed.state = 'dead' THEN clock.now END,
        remove_at = CASE WHEN lapsed.keep > 0 THEN clock.now + lapsed.keep END,
        held_key = CASE WHEN lapsed.state = 'dead' THEN NULL ELSE jobs.held_key END,
        claimed_at = CASE WHEN lapsed.state = 'dead' THEN jobs.claimed_at END,
        worker = CASE WHEN lapsed.state = 'dead' THEN jobs.worker END
    FROM clock, lapsed
    WHERE jobs.id = lapsed.id AND lapsed.keep <> 0
),
counted AS (
    INSERT INTO dayjob.counts (queue, running, pending, dead)
    SELECT queue, -count(*), count(*) FILTER (WHERE state = 'pending'),
        count(*) FILTER (WHERE state = 'dead' AND keep <> 0)
    FROM lapsed
    GROUP BY queue
)
SELECT id, state, queue FROM lapsed
