-- Claims of one owner.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_leases WHERE state = 'running' AND owner = ? LIMIT ?
