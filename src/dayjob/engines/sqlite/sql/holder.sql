-- The job that holds a dedup key.
SELECT id FROM dayjob_jobs WHERE queue_id = ? AND held_key = ?
