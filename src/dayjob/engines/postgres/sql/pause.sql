-- Pause a queue: its jobs are not claimed. The queue counts as used.
-- $1 token  $2 queue
WITH paused AS (
    INSERT INTO dayjob.pauses (queue) VALUES ($2) ON CONFLICT DO NOTHING
),
used AS (
    INSERT INTO dayjob.counters (queue) VALUES ($2)
)
INSERT INTO dayjob.replies (token, reply) VALUES ($1::uuid, '{}')
