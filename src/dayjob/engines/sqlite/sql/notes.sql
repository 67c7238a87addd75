-- What is noted under a kind, in the order of the names' bytes.
SELECT name, value, written_at FROM dayjob_notes WHERE kind = ? ORDER BY name
