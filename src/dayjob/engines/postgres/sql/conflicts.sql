-- Return why jobs were not stored: whether their id exists or is reserved, and the holder of their dedup key.
-- $1 ids  $2 queues  $3 dedup keys  $4 now
SELECT given.id,
    coalesce(
        (SELECT true FROM dayjob.jobs WHERE jobs.id = given.id::uuid),
        (SELECT reserved_until > dayjob.now_us($4) FROM dayjob.reserved_ids WHERE reserved_ids.id = given.id::uuid),
        false
    ),
    (SELECT jobs.id::text FROM dayjob.jobs WHERE jobs.queue = given.queue AND jobs.held_key = given.dedup_key)
FROM unnest($1::text[], $2::text[], $3::text[]) AS given (id, queue, dedup_key)
