-- Make candidates running. A dedup key held until the claim is released.
UPDATE dayjob_jobs
SET
    state = 'running',
    attempts = attempts + 1,
    epoch = max(epoch + 1, ?),
    claim = ?,
    claimed_at = ?,
    lease_expires_at = ?,
    worker = ?,
    owner = ?,
    progress = NULL,
    held_key = CASE dedup_until WHEN 'settled' THEN held_key END
WHERE id IN ({keys})
