-- Replace rows of counters by their sum.
-- $1 how many at most
WITH taken AS (
    DELETE FROM dayjob.counts
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM dayjob.counts LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING *
)
INSERT INTO dayjob.counts
SELECT queue, sum(pending), sum(scheduled), sum(running), sum(done), sum(dead), sum(cancelled)
FROM taken
GROUP BY queue
