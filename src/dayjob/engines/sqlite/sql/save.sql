-- Store a changed record.
UPDATE dayjob_jobs
SET
    state = ?, priority = ?, attempts = ?, max_attempts = ?, run_at = ?, claimed_at = ?, lease_expires_at = ?,
    finished_at = ?, expires_at = ?, remove_at = ?, last_error = ?, errors = ?, held_key = ?,
    cancel_requested = ?, worker = ?, claim = ?, result = ?, limited_by = ?, progress = coalesce(?, progress)
WHERE id = ?
