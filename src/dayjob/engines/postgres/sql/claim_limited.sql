-- Claim pending jobs of queues with limits or turns, queue by queue in the order given, each in the order of (priority, turn, id).
-- $1 now  $2 queues  $3 their leases  $4 limit  $5 worker  $6 claim  $7 the most bytes of payload  $8 the most jobs to block
-- $9… the settings of scan hints: the blocks that a claim may waste, microseconds before the present that no hint covers,
-- microseconds between searches of the hidden parts, the most late jobs to look up
-- A job without room becomes limited. Returns the claimed jobs, and rows without an id whose task is a topic, or
-- "0 locked QUEUE" if other transactions have locked jobs of that queue.
SELECT :CLAIM_COLUMNS
FROM dayjob.claim_limited($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ORDER BY array_position($2::text[], queue), priority, turn, id
