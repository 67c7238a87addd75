-- The engines that were opened on a host and not closed cleanly with nothing running.
SELECT id, pid, started FROM dayjob_owners WHERE host = ?
