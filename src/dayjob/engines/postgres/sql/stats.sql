-- The counters of all queues ever used, in name order; the last column tells how many rows they are made of.
SELECT queue, sum(pending)::bigint, sum(scheduled)::bigint, sum(running)::bigint, sum(done)::bigint,
    sum(dead)::bigint, sum(cancelled)::bigint, count(*)
FROM dayjob.counts
GROUP BY queue
ORDER BY queue
