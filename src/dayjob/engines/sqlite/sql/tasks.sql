-- The task of each job.
SELECT id, task FROM dayjob_jobs WHERE id IN ({keys})
