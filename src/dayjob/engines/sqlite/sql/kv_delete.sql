DELETE FROM dayjob_kv WHERE key = ?
