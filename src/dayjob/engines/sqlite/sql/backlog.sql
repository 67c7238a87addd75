SELECT pending + limited FROM dayjob_queues WHERE id = ?
