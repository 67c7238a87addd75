-- Make dead jobs pending again.
-- $1 token  $2 now  $3 ids
-- Answers, for each that was dead, "id queue".
WITH clock AS MATERIALIZED (
    SELECT dayjob.now_us($2) AS now
),
saved AS (
    UPDATE dayjob.jobs
    SET state = 'pending', attempts = 0, run_at = clock.now, last_error = NULL, finished_at = NULL, remove_at = NULL,
        expires_at = NULL, cancel_requested = false, claimed_at = NULL, lease_expires_at = NULL, worker = NULL
    FROM clock
    WHERE id = ANY ($3::uuid[]) AND state || '' = 'dead'
    RETURNING id, queue
),
counted AS (
    INSERT INTO dayjob.counts (queue, dead, pending)
    SELECT queue, -count(*), count(*) FROM saved GROUP BY queue
),
answer AS MATERIALIZED (
    SELECT coalesce(array_agg(concat(id, ' ', queue)), '{}') AS told FROM saved
),
noted AS (
    INSERT INTO dayjob.batches (token, answer)
    SELECT $1::uuid, told FROM answer WHERE $1::uuid IS NOT NULL
)
SELECT told FROM answer
