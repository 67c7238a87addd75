-- Remove finished jobs whose time of removal has come.
-- $1 now  $2 limit
WITH over AS MATERIALIZED (
    SELECT id FROM dayjob.jobs
    WHERE remove_at <= (SELECT dayjob.now_us($1))
    ORDER BY remove_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
),
removed AS (
    DELETE FROM dayjob.jobs WHERE id = ANY (ARRAY(SELECT id FROM over))
    RETURNING queue, state
),
counted AS (
    INSERT INTO dayjob.counts (queue, dead, cancelled)
    SELECT queue, -count(*) FILTER (WHERE state = 'dead'), -count(*) FILTER (WHERE state = 'cancelled')
    FROM removed
    GROUP BY queue
)
SELECT count(*) FROM removed
