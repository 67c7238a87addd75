UPDATE dayjob_queues SET turn = max(turn, ?) WHERE id = ?
