-- Store jobs. Fails with a unique violation if the id of one exists.
-- $1 token, or NULL  $2 now  $3 channel  $4 message, or NULL  $5 whether all are late  $6 the number of jobs  $7 their ids as text
-- $8… the other fields, one array for each name in rows.py. An array with one item has the same value for all jobs.
-- A job that may become visible after younger ones were claimed is late: its id is old, or the transaction may be long.
-- Replies NULL if all were stored, else the ids of those that were. Stores no reply if there are none.
-- insert_skipping has also the lines after --skipping. It leaves out jobs whose id exists or whose dedup key is held, also by
-- the window of another job: hold_keys.sql opens that of a new job before. The
-- server then writes one more record a job to its log.
-- insert_reserving has also the lines after --reserving. It reserves the ids of jobs with reserve_id, and
-- stores no job whose id is reserved. Its third column has the ids that it reserved for jobs that it did not store. A
-- reservation is a row with a primary key, so that of two concurrent statements one waits for the commit of the other.
WITH :INSERT_CLOCK,
given AS (
    SELECT job.id, :INSERT_FIELDS, clock.*, coalesce(job.run_at, clock.now + job.delay, clock.now) AS due,
        coalesce(job.expires_at, clock.now + job.expires_in) AS expiry
    FROM clock, unnest($7::text::uuid[], :INSERT_ARRAYS) AS job (id, :INSERT_NAMES)
),
--reserving reserved AS (
--reserving     INSERT INTO dayjob.reserved_ids (id, reserved_until)
--reserving     SELECT DISTINCT given.id, given.now + :ID_RESERVATION
--reserving     FROM given
--reserving     WHERE given.reserve_id AND (SELECT true FROM dayjob.jobs WHERE jobs.id = given.id) IS NULL
--reserving     ORDER BY 1
--reserving     ON CONFLICT (id) DO UPDATE SET reserved_until = excluded.reserved_until
--reserving     WHERE reserved_ids.reserved_until <= excluded.reserved_until - :ID_RESERVATION
--reserving     RETURNING id
--reserving ),
inserted AS (
    INSERT INTO dayjob.jobs (id, state, enqueued_at, held_key, late, :INSERT_COLUMNS)
    SELECT id, CASE WHEN due > now THEN 'scheduled' ELSE 'pending' END, now, dedup_key,
        CASE WHEN $5::boolean OR id < late_before THEN writer END, :INSERT_VALUES
    FROM given
--skipping     WHERE (given.dedup_key IS NULL OR coalesce((
--skipping         SELECT windows.reserved_until <= given.now FROM dayjob.reserved_ids AS windows
--skipping         WHERE windows.id = (SELECT dayjob.window_of(coalesce(given.dedup_scope, given.queue), given.dedup_key))
--skipping             AND windows.job <> given.id
--skipping     ), true))
--reserving     AND (NOT given.reserve_id OR given.id IN (SELECT reserved.id FROM reserved))
--skipping     ON CONFLICT DO NOTHING
    RETURNING id, queue, state
),
counted AS (
    INSERT INTO dayjob.counters (queue, pending, scheduled)
    SELECT queue, count(*) FILTER (WHERE state = 'pending'), count(*) FILTER (WHERE state = 'scheduled')
    FROM inserted
    GROUP BY queue
),
result AS MATERIALIZED (
    SELECT count(*) AS inserted,
        CASE WHEN count(*) < $6 THEN coalesce(array_agg(id::text), '{}') END AS reply
    FROM inserted
),
stored AS (:STORE WHERE $1::uuid IS NOT NULL AND inserted > 0)
SELECT reply, CASE WHEN $4::text IS NOT NULL AND :NOTIFICATIONS_FIT THEN pg_notify($3, $4) END
--reserving     , ARRAY(SELECT reserved.id::text FROM reserved WHERE reserved.id NOT IN (SELECT inserted.id FROM inserted))
FROM result
