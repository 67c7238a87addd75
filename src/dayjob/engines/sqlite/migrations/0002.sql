-- dayjob_notes    what dayjob keeps for itself, by kind and name: schedules, workers, who has the duties. A
--                 note is replaced only together with a look at what it was, under the write lock.
--
-- Its rows have ids of their own, and the value comes last: a table without them would read whole values,
-- which may be large, only to compare the names.

CREATE TABLE dayjob_notes (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    written_at INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (kind, name)
);
