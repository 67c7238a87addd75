-- Store jobs, except those whose id exists or whose dedup key is held.
INSERT INTO dayjob_jobs ({columns})
VALUES {rows}
ON CONFLICT DO NOTHING
