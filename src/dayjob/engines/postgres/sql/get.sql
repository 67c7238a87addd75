-- Return full records by id.
-- $1 ids
SELECT :JOB_COLUMNS
FROM dayjob.jobs
WHERE id = ANY ($1::uuid[])
