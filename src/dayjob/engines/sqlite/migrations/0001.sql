-- Layout 1: jobs, queues, owners, kv pairs. See README.md.

CREATE TABLE dayjob_meta (
    key TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE dayjob_queues (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    paused INTEGER NOT NULL DEFAULT 0,
    pending INTEGER NOT NULL DEFAULT 0,
    scheduled INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE dayjob_jobs (
    id BLOB PRIMARY KEY,
    queue_id INTEGER NOT NULL,
    state TEXT NOT NULL,
    priority INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
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

CREATE INDEX dayjob_pending ON dayjob_jobs (queue_id, priority, id) WHERE state = 'pending';
CREATE INDEX dayjob_due ON dayjob_jobs (run_at) WHERE state = 'scheduled';
CREATE INDEX dayjob_leases ON dayjob_jobs (lease_expires_at) WHERE state = 'running';
CREATE INDEX dayjob_expiries ON dayjob_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND attempts = 0 AND state IN ('pending', 'scheduled');
CREATE INDEX dayjob_removals ON dayjob_jobs (remove_at) WHERE remove_at IS NOT NULL;
CREATE INDEX dayjob_finished ON dayjob_jobs (state, queue_id, id) WHERE finished_at IS NOT NULL;
CREATE UNIQUE INDEX dayjob_holders ON dayjob_jobs (queue_id, held_key) WHERE held_key IS NOT NULL;
CREATE INDEX dayjob_flagged ON dayjob_jobs (id) WHERE state = 'running' AND cancel_requested = 1;

CREATE TABLE dayjob_owners (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL
);

CREATE TABLE dayjob_kv (
    key BLOB PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
