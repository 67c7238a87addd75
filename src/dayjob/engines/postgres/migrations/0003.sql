-- Tables and columns get the names of the engine contract. The counters get a primary key: with a publication FOR ALL
-- TABLES, the server refuses to change rows of a table without one.
-- Readable since layout 3.

ALTER TABLE dayjob.notes RENAME TO documents;
ALTER INDEX dayjob.notes_pkey RENAME TO documents_pkey;

ALTER TABLE dayjob.batches RENAME TO replies;
ALTER TABLE dayjob.replies RENAME COLUMN noted_at TO stored_at;
ALTER TABLE dayjob.replies RENAME COLUMN answer TO reply;
ALTER INDEX dayjob.batches_pkey RENAME TO replies_pkey;
ALTER INDEX dayjob.batches_noted RENAME TO replies_stored_at;

ALTER TABLE dayjob.counts RENAME TO counters;
ALTER TABLE dayjob.counters ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY;
