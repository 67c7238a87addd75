-- Remove idle buckets, and the turns of tenants that their queue has passed.
-- $1 now  $2 limit
-- A repetition is harmless: it removes the next ones.
WITH idle AS (
    DELETE FROM dayjob.buckets WHERE name = ANY (ARRAY(
        SELECT name FROM dayjob.buckets
        WHERE running = 0 AND tat <= (SELECT dayjob.now_us($1)) AND due IS NULL
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ))
)
DELETE FROM dayjob.tenant_turns WHERE ctid = ANY (ARRAY(
    SELECT tenants.ctid
    FROM dayjob.tenant_turns AS tenants JOIN dayjob.queue_turns AS passed ON passed.queue = tenants.queue
    WHERE tenants.turn <= passed.turn
    LIMIT $2
    FOR UPDATE OF tenants SKIP LOCKED
))
