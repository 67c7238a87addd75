SELECT name FROM dayjob_queues WHERE id = ?
