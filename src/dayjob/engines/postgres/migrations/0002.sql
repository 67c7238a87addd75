-- Compare-and-set records, and dead jobs in the order of their failures.
-- Readable since layout 1.

CREATE TABLE dayjob.notes (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    written_at bigint NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (kind, name)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Dead jobs by finish time, of all queues and of one.
CREATE INDEX CONCURRENTLY jobs_dead ON dayjob.jobs (finished_at, id) WHERE state = 'dead';
CREATE INDEX CONCURRENTLY jobs_dead_of ON dayjob.jobs (queue, finished_at, id) WHERE state = 'dead' AND queue <> '';
