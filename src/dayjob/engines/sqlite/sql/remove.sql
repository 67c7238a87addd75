DELETE FROM dayjob_jobs WHERE id IN ({keys})
