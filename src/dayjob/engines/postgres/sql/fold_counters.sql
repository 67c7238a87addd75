-- Replace rows of counters by their sum.
-- $1 limit
-- Returns how many rows were replaced, and by how many.
-- A repetition is harmless: the sums stay the same.
WITH taken AS (
    DELETE FROM dayjob.counters
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM dayjob.counters LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING *
),
summed AS (
    INSERT INTO dayjob.counters (queue, pending, scheduled, limited, running, done, dead, cancelled)
    SELECT queue, sum(pending), sum(scheduled), sum(limited), sum(running), sum(done), sum(dead), sum(cancelled)
    FROM taken
    GROUP BY queue
    RETURNING id
)
SELECT (SELECT count(*) FROM taken), (SELECT count(*) FROM summed)
