INSERT INTO dayjob_owners (host, pid, started) VALUES (?, ?, ?)
