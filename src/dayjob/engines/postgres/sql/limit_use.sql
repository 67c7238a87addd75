-- Return the running units and the limited jobs of all buckets.
SELECT name, sum(running)::bigint, sum(limited)::bigint
FROM (
    SELECT name, running, 0 AS limited FROM dayjob.buckets
    UNION ALL
    SELECT limited_by, 0, count(*) FROM dayjob.jobs WHERE state = 'limited' GROUP BY limited_by
) AS used
GROUP BY name
