-- Engines that were opened on a host and not closed, or closed while they had claims.
SELECT id, pid, started FROM dayjob_owners WHERE host = ?
