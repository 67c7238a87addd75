-- Return the turn of each fair queue, and the next free turn of each tenant. Other transactions wait for these tenants.
-- $1 queues  $2 tenants
SELECT queue, tenant, turn, free FROM dayjob.next_turns($1::text[], $2::text[])
