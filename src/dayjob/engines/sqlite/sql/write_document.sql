INSERT INTO dayjob_documents (kind, name, written_at, value)
VALUES (?, ?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET written_at = excluded.written_at, value = excluded.value
