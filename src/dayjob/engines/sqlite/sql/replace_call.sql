-- Give a waiting job the call of a later one.
UPDATE dayjob_jobs SET task = ?, tenant = ?, headers = ?, payload = ? WHERE id = ?
