-- Return the counters of all queues ever used, in name order. The last column is the number of their rows.
SELECT queue, sum(pending)::bigint, sum(scheduled)::bigint, sum(running)::bigint, sum(done)::bigint,
    sum(dead)::bigint, sum(cancelled)::bigint, sum(limited)::bigint, count(*)
FROM dayjob.counters
GROUP BY queue
ORDER BY queue
