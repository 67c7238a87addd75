DELETE FROM dayjob_buckets WHERE name = ?
