-- Store the next free turns of tenants.
-- $1 queues  $2 tenants  $3 turns
UPDATE dayjob.tenant_turns SET turn = given.turn
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS given (queue, tenant, turn)
WHERE tenant_turns.queue = given.queue AND tenant_turns.tenant = given.tenant
