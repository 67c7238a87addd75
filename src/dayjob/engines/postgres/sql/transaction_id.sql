-- Return the id of the open transaction, as text.
SELECT pg_current_xact_id()::text
