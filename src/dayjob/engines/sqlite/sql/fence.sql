-- The columns that show whether claims are current.
SELECT id, queue_id, state, claim, limits FROM dayjob_jobs WHERE id IN ({keys})
