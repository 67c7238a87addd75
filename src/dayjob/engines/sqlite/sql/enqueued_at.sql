SELECT enqueued_at FROM dayjob_jobs WHERE id = ?
