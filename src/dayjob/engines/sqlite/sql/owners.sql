-- Owners of this host, and owners of other hosts without claims.
SELECT id, host = ?, pid, started FROM dayjob_owners
WHERE host = ? OR NOT EXISTS (
    SELECT 1 FROM dayjob_jobs INDEXED BY dayjob_leases WHERE state = 'running' AND owner = dayjob_owners.id
)
