SELECT 1 FROM dayjob_jobs WHERE id = ?
