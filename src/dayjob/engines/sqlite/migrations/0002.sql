-- Layout 2: documents (named notes here, renamed by 0003.sql), and dead jobs by finish time. See README.md.

CREATE TABLE dayjob_notes (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    written_at INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE INDEX dayjob_deaths ON dayjob_jobs (finished_at, id) WHERE state = 'dead';
CREATE INDEX dayjob_deaths_of_queue ON dayjob_jobs (queue_id, finished_at, id) WHERE state = 'dead';
