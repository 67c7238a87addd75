-- A vacuum leaves the empty end of these tables. To cut it off it locks the table against all use, and flushes the
-- server's log under that lock: every insert, claim and settlement would wait for the disk.
-- Readable since layout 4.

ALTER TABLE dayjob.jobs SET (vacuum_truncate = off, toast.vacuum_truncate = off);
ALTER TABLE dayjob.counters SET (vacuum_truncate = off);
ALTER TABLE dayjob.replies SET (vacuum_truncate = off);
