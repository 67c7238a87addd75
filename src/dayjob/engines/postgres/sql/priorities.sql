-- Return the priorities and turns of the pending jobs of each queue, by seeking from one to the next.
-- $1 queues, NULL for all  $2 limit
WITH RECURSIVE wanted AS (
    SELECT queue FROM unnest($1::text[]) AS queue
    UNION
    SELECT counters.queue FROM dayjob.counters WHERE $1::text[] IS NULL
),
priorities AS (
    SELECT wanted.queue, first.priority, first.turn
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT priority, turn FROM dayjob.jobs
        WHERE state = 'pending' AND jobs.queue = wanted.queue
        ORDER BY priority, turn
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT priorities.queue, following.priority, following.turn
    FROM priorities
    CROSS JOIN LATERAL (
        SELECT priority, turn FROM dayjob.jobs
        WHERE state = 'pending' AND jobs.queue = priorities.queue
            AND (jobs.priority, jobs.turn) > (priorities.priority, priorities.turn)
        ORDER BY priority, turn
        LIMIT 1
    ) AS following
)
SELECT queue, priority, turn FROM priorities LIMIT $2
