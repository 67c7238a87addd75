-- The next jobs of a line, after the given place.
SELECT :RECORD_COLUMNS
FROM dayjob_jobs INDEXED BY dayjob_lines
WHERE limited_by = ? AND queue_id = ? AND (priority, turn, id) > (?, ?, ?)
ORDER BY priority, turn, id
LIMIT ?
