-- Store jobs; those whose id exists or whose dedup key is held are passed over.
-- $1 now  $2 token  $3 channel  $4 news  $5… the jobs, one array per column.
-- Answers, unless it is all, which were stored.
WITH clock AS MATERIALIZED (
    SELECT dayjob.now_us($1) AS now
),
given AS (
    SELECT job.*, clock.now, coalesce(job.run_at, clock.now + job.delay) AS due,
        coalesce(job.expires_at, clock.now + job.expires_in) AS expiry
    FROM clock, unnest(
        $5::text[], $6::text[], $7::text[], $8::bytea[], $9::bigint[], $10::integer[], $11::text[], $12::text[],
        $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::text[], $18::text[]
    ) AS job (
        id, queue, task, payload, priority, max_attempts, headers, tenant,
        run_at, delay, expires_at, expires_in, dedup_key, dedup_until
    )
),
stored AS (
    INSERT INTO dayjob.jobs (
        id, queue, state, task, payload, priority, max_attempts, headers, tenant,
        enqueued_at, run_at, expires_at, dedup_key, held_key, dedup_until
    )
    SELECT id::uuid, queue, CASE WHEN due > now THEN 'scheduled' ELSE 'pending' END, task, payload, priority,
        max_attempts, headers::jsonb, tenant, now, due, expiry, dedup_key, dedup_key, dedup_until
    FROM given
    ON CONFLICT DO NOTHING
    RETURNING id, queue, state
),
counted AS (
    INSERT INTO dayjob.counts (queue, pending, scheduled)
    SELECT queue, count(*) FILTER (WHERE state = 'pending'), count(*) FILTER (WHERE state = 'scheduled')
    FROM stored
    GROUP BY queue
),
answer AS MATERIALIZED (
    SELECT count(*) AS stored,
        CASE WHEN count(*) < cardinality($5::text[]) THEN coalesce(array_agg(id::text), '{}') END AS ids
    FROM stored
),
noted AS (
    INSERT INTO dayjob.batches (token, answer)
    SELECT $2::uuid, ids FROM answer WHERE $2::uuid IS NOT NULL AND stored > 0
)
SELECT ids, CASE WHEN $4::text IS NOT NULL THEN pg_notify($3, $4) END FROM answer
