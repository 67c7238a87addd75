INSERT INTO dayjob_reserved_ids (id, reserved_until) VALUES (?, ?)
ON CONFLICT (id) DO UPDATE SET reserved_until = excluded.reserved_until
