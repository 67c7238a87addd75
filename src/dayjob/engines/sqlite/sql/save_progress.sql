-- Store the progress of a running job. The caller has checked the fence in the same transaction.
UPDATE dayjob_jobs SET progress = ? WHERE id = ?
