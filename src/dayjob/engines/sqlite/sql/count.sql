-- Add to a queue's counters.
UPDATE dayjob_queues
SET
    pending = pending + ?, scheduled = scheduled + ?, running = running + ?, done = done + ?,
    dead = dead + ?, cancelled = cancelled + ?
WHERE id = ?
