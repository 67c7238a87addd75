-- Claim pending jobs of queues without limits and turns, queue by queue in the order given, each in the order of (priority, id).
-- $1 now  $2 queues  $3 their leases  $4, $5 the (priority, id) after which each range starts  $6 limit
-- $7 worker  $8 claim  $9 whether to consider jobs that other transactions may have locked  $10 the most bytes of payload
-- $11 the queue of each range  $12, $13 the (priority, id) at which it ends. The ranges are in the order of the jobs.
-- If one of the queues has jobs with limits or turns, nothing is claimed: claim_limited.sql has to. The last column but one has
-- those queues. There is at least one row, without an id if no job was claimed. The turn is a part of the index: it is 0.
-- The claim holds a lock named by its token while it is under way. A repetition waits for it, then finds its jobs.
-- A job that another claim took after this snapshot is skipped. Locking it would lock its new version, which is running,
-- and its worker could not settle it until this claim ends. The row's xmax names that transaction. It is compared with this
-- statement's snapshot; the addition extends it from 32 to 64 bits.
-- "nullif … IS NOT NULL" makes the planner expect that nearly all jobs pass.
-- At least one job is claimed. The jobs beyond the bytes were locked for nothing, and are free after this statement.
-- The jobs are updated by their place in the table, where they are locked: their ids were a second search. A job that was
-- changed after this snapshot, and is pending again, is at a place that the snapshot does not see. It stays pending.
-- The window has no ORDER BY: it reads the materialized rows in the order in which they were picked.
-- The last column is the number of index blocks that were read: few, or many if dead entries of claimed jobs are still in
-- the index, because no vacuum has run or another transaction holds an old snapshot.
WITH clock AS MATERIALIZED (
    SELECT dayjob.now_us($1) AS now, pg_advisory_xact_lock(hashtextextended($8::uuid::text, 0)) AS under_way,
        pg_stat_get_xact_blocks_fetched('dayjob.jobs_pending'::regclass) AS read,
        ARRAY(SELECT limited.queue FROM dayjob.limited_queues AS limited WHERE limited.queue = ANY ($2::text[])) AS limited,
        pg_current_snapshot() AS snapshot, pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 2147483648 AS base
),
wanted AS MATERIALIZED (
    SELECT queue, after_priority, after_id, until_priority, until_id
    FROM unnest($11::text[], $4::bigint[], $5::uuid[], $12::bigint[], $13::uuid[])
        AS wanted (queue, after_priority, after_id, until_priority, until_id)
    WHERE (SELECT pauses.queue FROM dayjob.pauses WHERE pauses.queue = wanted.queue) IS NULL
        AND (SELECT limited FROM clock) = '{}'
),
picked AS MATERIALIZED (
    SELECT job.place, job.size
    FROM clock, wanted
    CROSS JOIN LATERAL (
        SELECT jobs.ctid AS place, octet_length(jobs.payload) AS size
        FROM dayjob.jobs
        WHERE jobs.queue = wanted.queue AND jobs.state = 'pending'
            AND (jobs.priority, jobs.turn, jobs.id) > (wanted.after_priority, 0, wanted.after_id)
            AND (jobs.priority, jobs.turn, jobs.id) <= (wanted.until_priority, 0, wanted.until_id)
            AND (jobs.expires_at > clock.now OR jobs.expires_at IS NULL OR jobs.attempts > 0)
            AND nullif(jobs.xmax = '0'::xid OR $9 OR pg_visible_in_snapshot(
                (clock.base + ((jobs.xmax::text::bigint - clock.base) & 4294967295))::text::xid8, clock.snapshot
            ), false) IS NOT NULL
        ORDER BY jobs.priority, jobs.turn, jobs.id
        LIMIT $6
        FOR UPDATE SKIP LOCKED
    ) AS job
    LIMIT $6
),
fitting AS MATERIALIZED (
    SELECT place
    FROM (
        SELECT place, sum(size) OVER preceding AS total, row_number() OVER preceding AS number
        FROM picked
        WINDOW preceding AS (ROWS UNBOUNDED PRECEDING)
    ) AS summed
    WHERE total <= $10 OR number = 1
),
claimed AS (
    UPDATE dayjob.jobs
    SET state = 'running', attempts = attempts + 1, epoch = greatest(epoch + 1, clock.now), claimed_at = clock.now,
        lease_expires_at = clock.now + ($3::bigint[])[array_position($2::text[], queue)],
        worker = $7, claim = $8, progress = NULL,
        held_key = CASE WHEN dedup_until = 'settled' THEN held_key END
    FROM clock
    WHERE jobs.ctid = ANY (ARRAY(SELECT place FROM fitting))
    RETURNING :CLAIM_COLUMNS
),
counted AS (
    INSERT INTO dayjob.counters (queue, pending, running)
    SELECT queue, -count(*), count(*) FROM claimed GROUP BY queue
)
SELECT claimed.*, clock.limited, (SELECT pg_stat_get_xact_blocks_fetched('dayjob.jobs_pending'::regclass)) - clock.read
FROM clock LEFT JOIN claimed ON true
ORDER BY array_position($2::text[], queue), priority, id
