-- End a transaction that has stored jobs with limits or turns, or settled jobs with limits.
-- $1 now  $2 the second columns of settle.sql  $3 ids of new jobs, as text  $4 whether new jobs may join lines
-- Returns topics.
SELECT dayjob.finish_limits(
    $1::bigint,
    (SELECT array_agg(job) FROM unnest($2::text[]) AS texts, unnest(texts::dayjob.departure[]) AS job),
    $3::text[]::uuid[], $4::boolean
)
