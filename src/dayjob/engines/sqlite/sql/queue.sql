SELECT id FROM dayjob_queues WHERE name = ?
