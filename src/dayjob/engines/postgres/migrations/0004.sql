-- The epoch of a claim is a time in microseconds. A new column takes no rewrite of the table, and the old numbers are all
-- smaller than the next one.
-- Readable since layout 4.

ALTER TABLE dayjob.jobs DROP COLUMN epoch, ADD COLUMN epoch bigint NOT NULL DEFAULT 0;
