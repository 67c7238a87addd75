-- Return jobs that became pending late, since a snapshot of each queue.
-- $1 queues  $2 their snapshots, NULL for the present one  $3 the most jobs of a range
-- A transaction that was under way at the snapshot is looked for by its number, all later ones by one range.
-- Returns at least one row a queue, with the present snapshot and time, and whether the queue is paused.
WITH wanted AS MATERIALIZED (
    SELECT queue, coalesce(snapshot::pg_snapshot, pg_current_snapshot()) AS snapshot,
        EXISTS (SELECT FROM dayjob.pauses WHERE pauses.queue = wanted.queue) AS paused
    FROM unnest($1::text[], $2::text[]) AS wanted (queue, snapshot)
),
ranges AS MATERIALIZED (
    SELECT queue, paused, pg_snapshot_xmax(snapshot) AS first, '18446744073709551615'::xid8 AS last FROM wanted
    UNION ALL
    SELECT queue, paused, number, number FROM wanted CROSS JOIN LATERAL pg_snapshot_xip(snapshot) AS number
)
SELECT ranges.queue, pg_current_snapshot()::text, dayjob.now_us(NULL), ranges.paused, job.priority, job.id
FROM ranges
LEFT JOIN LATERAL (
    SELECT jobs.priority, jobs.id
    FROM dayjob.jobs
    WHERE jobs.queue = ranges.queue AND jobs.state = 'pending' AND jobs.late >= ranges.first AND jobs.late <= ranges.last
    ORDER BY jobs.late
    LIMIT $3
) AS job ON true
