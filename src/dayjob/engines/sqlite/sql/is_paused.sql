SELECT paused FROM dayjob_queues WHERE id = ?
