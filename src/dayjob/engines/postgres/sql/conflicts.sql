-- Return why jobs were not stored: whether their id exists or is reserved, the holder of their dedup key, and its window's job.
-- $1 ids  $2 scopes of dedup keys  $3 dedup keys  $4 names of their windows  $5 now
SELECT given.id,
    coalesce(
        (SELECT true FROM dayjob.jobs WHERE jobs.id = given.id::uuid),
        (SELECT reserved_until > dayjob.now_us($5) FROM dayjob.reserved_ids WHERE reserved_ids.id = given.id::uuid),
        false
    ),
    (
        SELECT jobs.id::text FROM dayjob.jobs
        WHERE coalesce(jobs.dedup_scope, jobs.queue) = given.scope AND jobs.held_key = given.dedup_key
    ),
    (
        SELECT reserved_ids.job::text FROM dayjob.reserved_ids
        WHERE reserved_ids.id = given.key_window::uuid AND reserved_until > dayjob.now_us($5)
    )
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS given (id, scope, dedup_key, key_window)
