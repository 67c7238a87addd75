-- Reservations of the ids that callers gave.
-- Readable since layout 3.

CREATE TABLE dayjob.reserved_ids (
    id uuid PRIMARY KEY,
    reserved_until bigint NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX reserved_ids_until ON dayjob.reserved_ids (reserved_until);
