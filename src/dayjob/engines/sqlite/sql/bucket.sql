SELECT running, tat, due_at FROM dayjob_buckets WHERE name = ?
