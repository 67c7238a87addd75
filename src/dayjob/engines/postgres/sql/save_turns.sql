-- Store the next free turns of tenants, which the transaction has locked.
-- $1 queues  $2 tenants  $3 turns
INSERT INTO dayjob.tenant_turns (queue, tenant, turn)
SELECT queue, tenant, turn FROM unnest($1::text[], $2::text[], $3::bigint[]) AS given (queue, tenant, turn)
ON CONFLICT (queue, tenant) DO UPDATE SET turn = excluded.turn
