-- Stop handing out a queue's jobs; the queue counts as used.
-- $1 queue
WITH paused AS (
    INSERT INTO dayjob.pauses (queue) VALUES ($1) ON CONFLICT DO NOTHING
)
INSERT INTO dayjob.counts (queue) VALUES ($1)
