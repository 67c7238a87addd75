-- Reserve an id; or a dedup key, by the name of its window and for a job.
INSERT INTO dayjob_reserved_ids (id, reserved_until, job) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET reserved_until = excluded.reserved_until, job = excluded.job
