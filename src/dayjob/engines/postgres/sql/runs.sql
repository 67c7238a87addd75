-- Which priorities the pending jobs of each queue have, by seeking from one to the next.
-- $1 queues, NULL for all  $2 limit
WITH RECURSIVE wanted AS (
    SELECT queue FROM unnest($1::text[]) AS queue
    UNION
    SELECT counts.queue FROM dayjob.counts WHERE $1::text[] IS NULL
),
runs AS (
    SELECT wanted.queue, first.priority
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT priority FROM dayjob.jobs
        WHERE state = 'pending' AND jobs.queue = wanted.queue
        ORDER BY priority
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT runs.queue, following.priority
    FROM runs
    CROSS JOIN LATERAL (
        SELECT priority FROM dayjob.jobs
        WHERE state = 'pending' AND jobs.queue = runs.queue AND jobs.priority > runs.priority
        ORDER BY priority
        LIMIT 1
    ) AS following
)
SELECT queue, priority FROM runs LIMIT $2
