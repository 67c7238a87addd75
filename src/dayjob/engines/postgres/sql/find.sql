-- Return full records; the caller appends conditions.
SELECT :JOB_COLUMNS
FROM dayjob.jobs
WHERE true
