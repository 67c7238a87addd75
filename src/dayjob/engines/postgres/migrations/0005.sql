-- More room in each page: the next versions of a job stay in its page, so that the server's log has their changed bytes
-- and not the whole row. A job grows by half from its insert to its end, and then fills the page.
-- Readable since layout 4.

ALTER TABLE dayjob.jobs SET (fillfactor = 60);
