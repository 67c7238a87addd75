SELECT value FROM dayjob_kv WHERE key = ?
