-- Store jobs with limits or turns, except those whose id exists or whose dedup key is held.
INSERT INTO dayjob_jobs (:PLACED_INSERT_COLUMNS)
VALUES {rows}
ON CONFLICT DO NOTHING
