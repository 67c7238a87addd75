-- Hand out a queue's jobs again; the queue counts as used.
-- $1 queue  $2 channel  $3 news
WITH resumed AS (
    DELETE FROM dayjob.pauses WHERE queue = $1
),
used AS (
    INSERT INTO dayjob.counts (queue) VALUES ($1)
)
SELECT pg_notify($2, $3)
