-- Store jobs, except those whose id exists or whose dedup key is held.
INSERT INTO dayjob_jobs (:INSERT_COLUMNS)
VALUES {rows}
ON CONFLICT DO NOTHING
