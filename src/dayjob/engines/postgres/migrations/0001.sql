-- The tables of the first layout; README.md describes all tables as they are now.
-- Readable since layout 1.

-- Return the time to act at: the given one, or the server's.
CREATE FUNCTION dayjob.now_us(given bigint) RETURNS bigint
    LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT coalesce(given, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) $$;

CREATE TABLE dayjob.meta (
    key text PRIMARY KEY,
    value text NOT NULL
);

INSERT INTO dayjob.meta VALUES ('installation', gen_random_uuid()::text);

CREATE TABLE dayjob.jobs (
    id uuid PRIMARY KEY,
    priority bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    run_at bigint NOT NULL,
    claimed_at bigint,
    lease_expires_at bigint,
    finished_at bigint,
    expires_at bigint,
    remove_at bigint,
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    epoch integer NOT NULL DEFAULT 0,
    cancel_requested boolean NOT NULL DEFAULT false,
    claim uuid,
    state text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    tenant text COLLATE "C",
    worker text COLLATE "C",
    dedup_key text COLLATE "C",
    held_key text COLLATE "C",
    dedup_until text COLLATE "C" NOT NULL,
    headers jsonb,
    last_error text,
    errors text[],
    progress jsonb,
    result bytea,
    payload bytea NOT NULL
) WITH (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_analyze_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX jobs_pending ON dayjob.jobs (queue, priority, id) WHERE state = 'pending';
CREATE INDEX jobs_due ON dayjob.jobs (run_at) WHERE state = 'scheduled';
CREATE INDEX jobs_leases ON dayjob.jobs (lease_expires_at) WHERE state = 'running';
CREATE INDEX jobs_expiries ON dayjob.jobs (expires_at)
    WHERE expires_at IS NOT NULL AND attempts = 0 AND finished_at IS NULL;
CREATE INDEX jobs_removals ON dayjob.jobs (remove_at) WHERE remove_at IS NOT NULL;
CREATE INDEX jobs_finished ON dayjob.jobs (state, queue, id) WHERE finished_at IS NOT NULL;
CREATE UNIQUE INDEX jobs_holders ON dayjob.jobs (queue, held_key) WHERE held_key IS NOT NULL;
CREATE INDEX jobs_flagged ON dayjob.jobs (id) WHERE cancel_requested AND state = 'running';

CREATE TABLE dayjob.counts (
    queue text COLLATE "C" NOT NULL,
    pending bigint NOT NULL DEFAULT 0,
    scheduled bigint NOT NULL DEFAULT 0,
    running bigint NOT NULL DEFAULT 0,
    done bigint NOT NULL DEFAULT 0,
    dead bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE dayjob.pauses (
    queue text COLLATE "C" PRIMARY KEY
);

CREATE TABLE dayjob.batches (
    token uuid PRIMARY KEY,
    noted_at bigint NOT NULL DEFAULT dayjob.now_us(NULL),
    answer text[]
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX batches_noted ON dayjob.batches (noted_at);

CREATE TABLE dayjob.kv (
    key bytea PRIMARY KEY,
    value bytea NOT NULL
);
