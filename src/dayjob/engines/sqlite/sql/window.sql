-- The job of a window that is not over.
SELECT job FROM dayjob_reserved_ids WHERE id = ? AND reserved_until > ? AND job IS NOT NULL
