-- Wait until a claim is no longer under way.
-- $1 claim
SELECT pg_advisory_xact_lock(hashtextextended($1::uuid::text, 0))
