-- Return microseconds until the next job or line is due, or the next job expires.
-- $1 now
SELECT least(
    (SELECT run_at FROM dayjob.jobs WHERE state = 'scheduled' ORDER BY run_at LIMIT 1),
    (
        SELECT expires_at FROM dayjob.jobs
        WHERE expires_at IS NOT NULL AND attempts = 0 AND finished_at IS NULL
            AND state || '' IN ('pending', 'scheduled', 'limited')
        ORDER BY expires_at LIMIT 1
    ),
    (SELECT due FROM dayjob.buckets WHERE due IS NOT NULL ORDER BY due LIMIT 1)
) - dayjob.now_us($1)
