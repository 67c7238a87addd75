-- The documents of a kind, in the byte order of their names.
SELECT name, value, written_at FROM dayjob_documents WHERE kind = ? ORDER BY name
