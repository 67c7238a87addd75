-- Store the new lease of a running job. The caller has checked the fence in the same transaction.
UPDATE dayjob_jobs SET lease_expires_at = ? WHERE id = ?
