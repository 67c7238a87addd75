INSERT OR REPLACE INTO dayjob_buckets (name, running, tat, due_at) VALUES (?, ?, ?, ?)
