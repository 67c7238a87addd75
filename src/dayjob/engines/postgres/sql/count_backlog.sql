-- Return the time, and the pending and limited jobs of each queue.
-- $1 now  $2 queues  $3 whether other transactions that count them have to wait
SELECT moment, queue, waiting FROM dayjob.count_waiting($1::bigint, $2::text[], $3::boolean)
