-- Return the queues with pending jobs, in name order.
-- A folded row of a queue without pending jobs is left out before the rows are grouped.
SELECT queue
FROM dayjob.counters
WHERE pending <> 0
GROUP BY queue
HAVING sum(pending) > 0
ORDER BY queue
