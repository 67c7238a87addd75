SELECT 1 FROM dayjob_jobs INDEXED BY dayjob_lines WHERE limited_by IS NOT NULL LIMIT 1
