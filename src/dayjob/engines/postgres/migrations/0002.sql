-- notes     small records of dayjob's own, such as schedules and workers, by kind and name. Whoever writes one
--           says what it was before, so that of two who knew the same one succeeds.

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

-- Dead letters, the latest failure first: of all queues, and of one.
CREATE INDEX jobs_dead ON dayjob.jobs (finished_at, id) WHERE state = 'dead';
CREATE INDEX jobs_dead_of ON dayjob.jobs (queue, finished_at, id) WHERE state = 'dead';
