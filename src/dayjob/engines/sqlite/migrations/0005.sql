-- Layout 5: limits, fair queues, and windows of dedup keys. dayjob_jobs.dedup_scope, turn, limits and limited_by precede the payload, as 0004.sql explains, so
-- the table is built again. Buckets and turns have tables of their own. See README.md.

CREATE TABLE dayjob_jobs_5 (
    id BLOB PRIMARY KEY,
    queue_id INTEGER NOT NULL,
    state TEXT NOT NULL,
    priority INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
    claim BLOB,
    enqueued_at INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    claimed_at INTEGER,
    lease_expires_at INTEGER,
    finished_at INTEGER,
    expires_at INTEGER,
    remove_at INTEGER,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    held_key TEXT,
    dedup_key TEXT,
    dedup_until TEXT NOT NULL,
    dedup_scope INTEGER,
    turn INTEGER NOT NULL DEFAULT 0,
    limits BLOB,
    limited_by TEXT,
    owner INTEGER,
    worker TEXT,
    task TEXT NOT NULL,
    tenant TEXT,
    headers BLOB,
    last_error TEXT,
    errors BLOB,
    result BLOB,
    progress BLOB,
    payload BLOB NOT NULL
) WITHOUT ROWID;

INSERT INTO dayjob_jobs_5 (
    id, queue_id, state, priority, attempts, max_attempts, epoch, claim, enqueued_at, run_at, claimed_at, lease_expires_at,
    finished_at, expires_at, remove_at, cancel_requested, held_key, dedup_key, dedup_until, owner, worker, task, tenant,
    headers, last_error, errors, result, progress, payload
)
SELECT
    id, queue_id, state, priority, attempts, max_attempts, epoch, claim, enqueued_at, run_at, claimed_at, lease_expires_at,
    finished_at, expires_at, remove_at, cancel_requested, held_key, dedup_key, dedup_until, owner, worker, task, tenant,
    headers, last_error, errors, result, progress, payload
FROM dayjob_jobs;

DROP TABLE dayjob_jobs;

ALTER TABLE dayjob_jobs_5 RENAME TO dayjob_jobs;

CREATE INDEX dayjob_pending ON dayjob_jobs (queue_id, priority, turn, id) WHERE state = 'pending';
CREATE INDEX dayjob_due ON dayjob_jobs (run_at) WHERE state = 'scheduled';
CREATE INDEX dayjob_leases ON dayjob_jobs (lease_expires_at) WHERE state = 'running';
CREATE INDEX dayjob_expiries ON dayjob_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND attempts = 0 AND state IN ('pending', 'scheduled', 'limited');
CREATE INDEX dayjob_removals ON dayjob_jobs (remove_at) WHERE remove_at IS NOT NULL;
CREATE INDEX dayjob_finished ON dayjob_jobs (state, queue_id, id) WHERE finished_at IS NOT NULL;
CREATE UNIQUE INDEX dayjob_holders ON dayjob_jobs (coalesce(dedup_scope, queue_id), held_key) WHERE held_key IS NOT NULL;
CREATE INDEX dayjob_flagged ON dayjob_jobs (id) WHERE state = 'running' AND cancel_requested = 1;
CREATE INDEX dayjob_deaths ON dayjob_jobs (finished_at, id) WHERE state = 'dead';
CREATE INDEX dayjob_deaths_of_queue ON dayjob_jobs (queue_id, finished_at, id) WHERE state = 'dead';

CREATE INDEX dayjob_lines ON dayjob_jobs (limited_by, queue_id, priority, turn, id) WHERE limited_by IS NOT NULL;

ALTER TABLE dayjob_reserved_ids ADD COLUMN job BLOB;

ALTER TABLE dayjob_queues ADD COLUMN limited INTEGER NOT NULL DEFAULT 0;
ALTER TABLE dayjob_queues ADD COLUMN turn INTEGER NOT NULL DEFAULT 1;

CREATE TABLE dayjob_buckets (
    name TEXT PRIMARY KEY,
    running INTEGER NOT NULL,
    tat INTEGER NOT NULL,
    due_at INTEGER
) WITHOUT ROWID;

CREATE INDEX dayjob_due_buckets ON dayjob_buckets (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE dayjob_turns (
    queue_id INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    turn INTEGER NOT NULL,
    PRIMARY KEY (queue_id, tenant)
) WITHOUT ROWID;
