-- The changeable part of jobs.
SELECT :RECORD_COLUMNS
FROM dayjob_jobs
WHERE id IN ({keys})
