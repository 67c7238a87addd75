UPDATE dayjob_queues SET paused = ? WHERE id = ?
