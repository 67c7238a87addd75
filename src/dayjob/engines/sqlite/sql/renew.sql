-- Set a new lease for a claim that is current.
UPDATE dayjob_jobs SET lease_expires_at = ? WHERE id = ? AND epoch = ? AND state = 'running'
