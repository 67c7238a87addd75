-- Return pending jobs in the parts of queues that claims leave out.
-- $1 queues, $2 priorities and $3 ids of the parts: all jobs of the priority up to the id  $4 the most of each part
-- The conditions form one range of the index, so that the planner finds no other plan cheaper.
-- Returns at least one row, with the number of index blocks that were read.
WITH clock AS MATERIALIZED (
    SELECT pg_stat_get_xact_blocks_fetched('dayjob.jobs_pending'::regclass) AS read
),
found AS MATERIALIZED (
    SELECT job.queue, job.priority, job.id
    FROM unnest($1::text[], $2::bigint[], $3::uuid[]) AS part (queue, priority, id)
    CROSS JOIN LATERAL (
        SELECT jobs.queue, jobs.priority, jobs.id
        FROM dayjob.jobs
        WHERE (jobs.queue, jobs.priority) >= (part.queue, part.priority)
            AND (jobs.queue, jobs.priority, jobs.turn, jobs.id) <= (part.queue, part.priority, 0, part.id)
            AND jobs.state = 'pending'
        ORDER BY jobs.queue, jobs.priority, jobs.turn, jobs.id
        LIMIT $4
    ) AS job
)
SELECT found.queue, found.priority, found.id,
    (SELECT pg_stat_get_xact_blocks_fetched('dayjob.jobs_pending'::regclass)) - clock.read
FROM clock LEFT JOIN found ON true
ORDER BY found.queue, found.priority, found.id
