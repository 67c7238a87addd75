INSERT INTO dayjob_turns (queue_id, tenant, turn) VALUES (?, ?, ?)
ON CONFLICT (queue_id, tenant) DO UPDATE SET turn = max(turn, excluded.turn)
