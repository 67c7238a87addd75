-- Reservations that have ended.
SELECT id FROM dayjob_reserved_ids INDEXED BY dayjob_reservations
WHERE reserved_until <= ?
ORDER BY reserved_until
LIMIT ?
