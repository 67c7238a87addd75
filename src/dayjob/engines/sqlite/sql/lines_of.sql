-- The buckets of a limit that have lines: the limit itself, and those with a key. ';' follows ':'.
SELECT DISTINCT limited_by FROM dayjob_jobs INDEXED BY dayjob_lines
WHERE limited_by = ? OR (limited_by > ? || ':' AND limited_by < ? || ';') OR limited_by = ? || ':'
ORDER BY limited_by
