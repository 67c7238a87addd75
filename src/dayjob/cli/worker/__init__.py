"""``dayjob worker``: the command, its supervisor, and one worker process."""
