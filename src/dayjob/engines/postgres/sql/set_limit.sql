-- Write a limit, or remove it, and wake the lines of its buckets.
-- $1 token  $2 now  $3 name  $4 value, or NULL
-- Replies with the number of jobs that became pending, and topics.
WITH result AS MATERIALIZED (
    SELECT woken::text || topics AS reply FROM dayjob.set_limit($2, $3, $4)
),
stored AS (:STORE)
SELECT reply FROM result
