-- Remove an owner without claims.
DELETE FROM dayjob_owners
WHERE id = ? AND NOT EXISTS (
    SELECT 1 FROM dayjob_jobs INDEXED BY dayjob_leases WHERE state = 'running' AND owner = dayjob_owners.id
)
