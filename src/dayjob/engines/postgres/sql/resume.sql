-- Resume a queue: its jobs are claimed again. The queue counts as used.
-- $1 token  $2 queue  $3 channel  $4 message
WITH resumed AS (
    DELETE FROM dayjob.pauses WHERE queue = $2
),
used AS (
    INSERT INTO dayjob.counters (queue) VALUES ($2)
),
stored AS (
    INSERT INTO dayjob.replies (token, reply) VALUES ($1::uuid, '{}')
)
SELECT CASE WHEN :NOTIFICATIONS_FIT THEN pg_notify($3, $4) END
