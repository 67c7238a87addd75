-- Owners of this host, and owners of other hosts without claims.
SELECT id, host = ?1, pid, started FROM dayjob_owners
WHERE host = ?1 OR NOT EXISTS (
    SELECT 1 FROM dayjob_jobs INDEXED BY dayjob_leases WHERE state = 'running' AND owner = dayjob_owners.id
)
