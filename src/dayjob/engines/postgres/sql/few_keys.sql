-- Return ids of jobs in one state in id order, for a small number of them.
-- $1 queue, NULL for all  $2 exclusive cursor  $3 whether the newest come first  $4 limit
WITH few AS MATERIALIZED (
    SELECT id FROM dayjob.jobs WHERE state = :STATE AND ($1::text IS NULL OR queue = $1)
)
SELECT id FROM few
WHERE $2::uuid IS NULL OR CASE WHEN $3::boolean THEN id < $2 ELSE id > $2 END
ORDER BY CASE WHEN $3 THEN id END DESC, id
LIMIT $4
