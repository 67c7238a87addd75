INSERT OR IGNORE INTO dayjob_owners (id, host, pid, started) VALUES (?, ?, ?, ?)
