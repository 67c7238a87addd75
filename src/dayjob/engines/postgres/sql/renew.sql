-- Set new leases for the claims that are current.
-- $1 now  $2 ids  $3 claims  $4 leases
-- Stores no reply: a repetition sets the lease again, and replies with the state at that time.
WITH :CLOCK_FIRST
UPDATE dayjob.jobs
SET lease_expires_at = clock.now + renewal.lease
FROM clock, unnest($2::uuid[], $3::uuid[], $4::bigint[]) AS renewal (id, claim, lease)
WHERE jobs.id = ANY (ARRAY[renewal.id]) AND jobs.claim = renewal.claim AND jobs.state || '' = 'running'
RETURNING jobs.id, jobs.claim, jobs.lease_expires_at, jobs.cancel_requested
