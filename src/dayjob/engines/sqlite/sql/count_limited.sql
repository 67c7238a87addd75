UPDATE dayjob_queues SET limited = limited + ? WHERE id = ?
