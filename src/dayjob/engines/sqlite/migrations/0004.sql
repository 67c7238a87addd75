-- Layout 4: dayjob_jobs.claim, the key of the claim that a job runs under. The column precedes the payload: a column after
-- it would be read through all pages of the payload. SQLite adds columns at the end only, so the table is built again.
-- A job that runs gets a key that no process has: its lease expires.

CREATE TABLE dayjob_jobs_4 (
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

INSERT INTO dayjob_jobs_4
SELECT
    id, queue_id, state, priority, attempts, max_attempts, epoch,
    CASE state WHEN 'running' THEN randomblob(16) END,
    enqueued_at, run_at, claimed_at, lease_expires_at, finished_at, expires_at, remove_at, cancel_requested, held_key,
    dedup_key, dedup_until, owner, worker, task, tenant, headers, last_error, errors, result, progress, payload
FROM dayjob_jobs;

DROP TABLE dayjob_jobs;

ALTER TABLE dayjob_jobs_4 RENAME TO dayjob_jobs;

CREATE INDEX dayjob_pending ON dayjob_jobs (queue_id, priority, id) WHERE state = 'pending';
CREATE INDEX dayjob_due ON dayjob_jobs (run_at) WHERE state = 'scheduled';
CREATE INDEX dayjob_leases ON dayjob_jobs (lease_expires_at) WHERE state = 'running';
CREATE INDEX dayjob_expiries ON dayjob_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND attempts = 0 AND state IN ('pending', 'scheduled');
CREATE INDEX dayjob_removals ON dayjob_jobs (remove_at) WHERE remove_at IS NOT NULL;
CREATE INDEX dayjob_finished ON dayjob_jobs (state, queue_id, id) WHERE finished_at IS NOT NULL;
CREATE UNIQUE INDEX dayjob_holders ON dayjob_jobs (queue_id, held_key) WHERE held_key IS NOT NULL;
CREATE INDEX dayjob_flagged ON dayjob_jobs (id) WHERE state = 'running' AND cancel_requested = 1;
CREATE INDEX dayjob_deaths ON dayjob_jobs (finished_at, id) WHERE state = 'dead';
CREATE INDEX dayjob_deaths_of_queue ON dayjob_jobs (queue_id, finished_at, id) WHERE state = 'dead';

-- Reservations of ids. See README.md.

CREATE TABLE dayjob_reserved_ids (
    id BLOB PRIMARY KEY,
    reserved_until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX dayjob_reservations ON dayjob_reserved_ids (reserved_until);
