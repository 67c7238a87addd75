-- Layout 4: reservations of ids. See README.md.

CREATE TABLE dayjob_reserved_ids (
    id BLOB PRIMARY KEY,
    reserved_until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX dayjob_reservations ON dayjob_reserved_ids (reserved_until);
