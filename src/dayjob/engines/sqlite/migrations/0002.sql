-- dayjob_notes    what dayjob keeps for itself, by kind and name: schedules, workers, who has the duties. A
--                 note is replaced only together with a look at what it was, under the write lock.
--
-- dayjob_jobs     gets two indexes of its dead jobs by the time of their failure: deaths, of all queues, and
--                 deaths_of_queue.
--
-- The rows of dayjob_notes have ids of their own, and the value comes last: a table without them would read
-- whole values, which may be large, only to compare the names.

CREATE TABLE dayjob_notes (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    written_at INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE INDEX dayjob_deaths ON dayjob_jobs (finished_at, id) WHERE state = 'dead';
CREATE INDEX dayjob_deaths_of_queue ON dayjob_jobs (queue_id, finished_at, id) WHERE state = 'dead';
