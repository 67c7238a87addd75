-- Claim pending jobs of queues with limits or turns, queue by queue in the order given, each in the order of (priority, turn, id).
-- $1 now  $2 queues  $3 their leases  $4 limit  $5 worker  $6 claim  $7 the most bytes of payload  $8 the most jobs to block
-- A job without room becomes limited. Returns the claimed jobs, and rows without an id whose task is a topic, or
-- "0 locked QUEUE" if other transactions have locked jobs of that queue.
SELECT :CLAIM_COLUMNS
FROM dayjob.claim_limited($1, $2, $3, $4, $5, $6, $7, $8)
ORDER BY array_position($2::text[], queue), priority, turn, id
