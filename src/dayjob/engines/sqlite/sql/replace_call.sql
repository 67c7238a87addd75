-- Give a waiting job the call of a later one.
UPDATE dayjob_jobs SET :CALL WHERE id = ?
