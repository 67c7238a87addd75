-- End running jobs that succeeded, if their claims are current: as done, or without retention by their removal.
-- $1 token  $2 now  $3 ids  $4 claims, both as text, which is cheaper to encode  $5 their number
-- $6 the retention of all of them; 0 removes them  $7 results, one if all are equal, or NULL if there are none
-- The state is compared as an expression: otherwise the planner walks the index of leases.
-- No row is locked before it is written: each lock is one more record in the log.
-- Replies NULL if all were ended, else "number done " for each that was, with its number in the batch; then "0 pending queue"
-- for each queue whose limited jobs got room, and "0 scheduled " if a line has a new due time. So do the other statements with
-- leave_limits.
WITH :CLOCK,
removed AS (
    DELETE FROM dayjob.jobs
    USING unnest($3::text::uuid[], $4::text::uuid[]) WITH ORDINALITY AS op (id, claim, number)
    WHERE $6::bigint = 0 AND jobs.id = ANY (ARRAY[op.id]) AND jobs.claim = op.claim AND jobs.state || '' = 'running'
    RETURNING op.number, jobs.queue, jobs.limits
),
saved AS (
    UPDATE dayjob.jobs
    SET state = 'done', finished_at = clock.now, remove_at = CASE WHEN $6 > 0 THEN clock.now + $6 END,
        lease_expires_at = NULL, held_key = NULL,
        result = CASE WHEN cardinality($7::bytea[]) = 1 THEN ($7::bytea[])[1] ELSE op.result END
    FROM clock, unnest($3::text::uuid[], $4::text::uuid[], $7::bytea[]) WITH ORDINALITY AS op (id, claim, result, number)
    WHERE $6 <> 0 AND jobs.id = ANY (ARRAY[op.id]) AND jobs.claim = op.claim AND jobs.state || '' = 'running'
    RETURNING op.number, jobs.queue, jobs.limits
),
ended AS MATERIALIZED (
    SELECT number, queue, limits FROM removed UNION ALL SELECT number, queue, limits FROM saved
),
counted AS (
    INSERT INTO dayjob.counters (queue, running, done)
    SELECT queue, -count(*), count(*) FROM ended GROUP BY queue
),
departed AS MATERIALIZED (
    SELECT count(*) AS number,
        array_agg(ROW('running', limits, NULL, NULL)::dayjob.departure) FILTER (WHERE limits IS NOT NULL) AS jobs
    FROM ended
),
:WOKEN,
result AS MATERIALIZED (
    SELECT CASE WHEN departed.number < $5 OR topics <> '{}'
        THEN ARRAY(SELECT concat(ended.number, ' done ') FROM ended) || topics END AS reply
    FROM departed, woken
),
stored AS (:STORE)
SELECT reply FROM result
