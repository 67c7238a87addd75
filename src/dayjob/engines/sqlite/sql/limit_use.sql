-- The running units and the limited jobs of all buckets.
SELECT name, sum(running), sum(limited)
FROM (
    SELECT name, running, 0 AS limited FROM dayjob_buckets WHERE running > 0
    UNION ALL
    SELECT limited_by, 0, count(*) FROM dayjob_jobs INDEXED BY dayjob_lines WHERE limited_by IS NOT NULL GROUP BY limited_by
)
GROUP BY name
