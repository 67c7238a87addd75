-- The layout of a dayjob queue in a SQLite file.
--
-- dayjob_queues   one row per queue ever used: its name, whether it is paused, and how many of its jobs
--                 are in each state (done: how many ever succeeded). Every commit that moves jobs updates
--                 the counters with them, so stats never count rows.
-- dayjob_jobs     one row per job, keyed by its 16-byte id. A job enters as pending or scheduled; promote
--                 makes it pending, claim makes it running, a settlement ends it or sends it back. Partial
--                 indexes keep each of these steps a seek, however many jobs wait or are kept:
--                   pending   what claim takes, in order          due       when promote is next wanted
--                   leases    what reap looks at                  expiries  jobs that may expire unstarted
--                   removals  what sweep removes, by time         finished  listing by state and queue
--                   holders   who holds a dedup key (unique)      flagged   running jobs asked to stop
--                 and those of dead jobs by time; see 0002.sql.
-- dayjob_owners   one row per open engine: which process on which host it is, so that claims of a dead
--                 process are known before their leases expire. Removed by close, or by the reaper.
-- dayjob_kv       the users' key-value space.
-- dayjob_notes    what dayjob keeps for itself; see 0002.sql.
-- dayjob_meta     the version of this layout.
--
-- Times are microseconds since 1970 in UTC. headers, errors and progress are MessagePack. held_key repeats dedup_key
-- for as long as the job holds it. An index condition is tried on every write, so it tests for NULL first
-- and never for a list of states, which costs as much as all other indexes together.

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
