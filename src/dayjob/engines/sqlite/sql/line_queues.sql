-- The queues that have a line for a bucket: one seek for each.
WITH RECURSIVE queues (id) AS (
    SELECT min(queue_id) FROM dayjob_jobs INDEXED BY dayjob_lines WHERE limited_by = ?
    UNION ALL
    SELECT (SELECT min(queue_id) FROM dayjob_jobs INDEXED BY dayjob_lines WHERE limited_by = ? AND queue_id > queues.id)
    FROM queues
    WHERE queues.id IS NOT NULL
)
SELECT id FROM queues WHERE id IS NOT NULL
