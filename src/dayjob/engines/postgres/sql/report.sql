-- Store the progress of the claims that are current.
-- $1 ids  $2 epochs  $3 progress
UPDATE dayjob.jobs
SET progress = report.progress::jsonb
FROM unnest($1::uuid[], $2::integer[], $3::text[]) AS report (id, epoch, progress)
WHERE jobs.id = report.id AND jobs.epoch = report.epoch AND jobs.state || '' = 'running'
