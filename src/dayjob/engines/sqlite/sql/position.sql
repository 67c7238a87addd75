-- Count the jobs that precede a pending job of the same queue, or a limited job in its line. The limit is in the
-- subqueries, so that no more than that many are counted.
SELECT
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM dayjob_jobs AS job CROSS JOIN dayjob_jobs AS first INDEXED BY dayjob_pending
            WHERE
                job.id = ? AND job.state = 'pending'
                AND first.state = 'pending' AND first.queue_id = job.queue_id
                AND (first.priority, first.turn, first.id) < (job.priority, job.turn, job.id)
            LIMIT ?
        )
    )
    + (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM dayjob_jobs AS job CROSS JOIN dayjob_jobs AS first INDEXED BY dayjob_lines
            WHERE
                job.id = ? AND job.limited_by IS NOT NULL
                AND first.limited_by = job.limited_by AND first.queue_id = job.queue_id
                AND (first.priority, first.turn, first.id) < (job.priority, job.turn, job.id)
            LIMIT ?
        )
    )
