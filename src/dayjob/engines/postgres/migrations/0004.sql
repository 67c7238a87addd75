-- The transaction that made a job pending late, for claims that skip dead index entries.
-- Readable since layout 3.

ALTER TABLE dayjob.jobs ADD COLUMN late xid8;

CREATE INDEX CONCURRENTLY jobs_late ON dayjob.jobs (queue, late) WHERE state = 'pending' AND late IS NOT NULL;
