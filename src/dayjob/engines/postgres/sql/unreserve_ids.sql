-- Remove the reservations of jobs that were not stored.
-- $1 ids
DELETE FROM dayjob.reserved_ids WHERE id = ANY ($1::text[]::uuid[])
