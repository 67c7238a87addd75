-- Store the progress of the claims that are current.
-- $1 token  $2 ids  $3 claims  $4 progress
WITH saved AS (
    UPDATE dayjob.jobs
    SET progress = report.progress::jsonb
    FROM unnest($2::uuid[], $3::uuid[], $4::text[]) AS report (id, claim, progress)
    WHERE jobs.id = ANY (ARRAY[report.id]) AND jobs.claim = report.claim AND jobs.state || '' = 'running'
)
INSERT INTO dayjob.replies (token, reply) VALUES ($1::uuid, '{}')
