SELECT name FROM dayjob_queues WHERE paused = 1
