-- Claims of some workers.
SELECT id FROM dayjob_jobs INDEXED BY dayjob_leases WHERE state = 'running' AND worker IN ({keys}) LIMIT ?
