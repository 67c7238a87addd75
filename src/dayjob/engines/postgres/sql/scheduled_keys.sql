-- Ids of all scheduled jobs, which should be few, in id order.
-- $1 queue, NULL for all  $2 beyond this id  $3 whether the newest come first  $4 limit
WITH few AS MATERIALIZED (
    SELECT id FROM dayjob.jobs WHERE state = 'scheduled' AND ($1::text IS NULL OR queue = $1)
)
SELECT id FROM few
WHERE $2::uuid IS NULL OR CASE WHEN $3::boolean THEN id < $2 ELSE id > $2 END
ORDER BY CASE WHEN $3 THEN id END DESC, id
LIMIT $4
