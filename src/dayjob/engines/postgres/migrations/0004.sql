-- The epoch of a claim is a time in microseconds. A new column takes no rewrite of the table, and the old numbers are all
-- smaller than the next one.
-- Readable since layout 4.

ALTER TABLE dayjob.jobs DROP COLUMN epoch, ADD COLUMN epoch bigint NOT NULL DEFAULT 0;

-- The transaction that made a job pending late, for claims that skip dead index entries.

ALTER TABLE dayjob.jobs ADD COLUMN late xid8;

CREATE INDEX CONCURRENTLY jobs_late ON dayjob.jobs (queue, late) WHERE state = 'pending' AND late IS NOT NULL;

-- Reservations of the ids that callers gave.

CREATE TABLE dayjob.reserved_ids (
    id uuid PRIMARY KEY,
    reserved_until bigint NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX reserved_ids_until ON dayjob.reserved_ids (reserved_until);
