-- Return the priorities of the pending jobs of each queue, by seeking from one to the next.
-- $1 queues, NULL for all  $2 limit
WITH RECURSIVE wanted AS (
    SELECT queue FROM unnest($1::text[]) AS queue
    UNION
    SELECT counters.queue FROM dayjob.counters WHERE $1::text[] IS NULL
),
priorities AS (
    SELECT wanted.queue, first.priority
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT priority FROM dayjob.jobs
        WHERE state = 'pending' AND jobs.queue = wanted.queue
        ORDER BY priority
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT priorities.queue, following.priority
    FROM priorities
    CROSS JOIN LATERAL (
        SELECT priority FROM dayjob.jobs
        WHERE state = 'pending' AND jobs.queue = priorities.queue AND jobs.priority > priorities.priority
        ORDER BY priority
        LIMIT 1
    ) AS following
)
SELECT queue, priority FROM priorities LIMIT $2
