-- The time, and what is noted under a kind, in name order; a single row without a name if there is nothing.
-- $1 now  $2 kind
SELECT clock.now, notes.name, notes.value, notes.written_at
FROM (SELECT dayjob.now_us($1) AS now) AS clock
LEFT JOIN dayjob.notes ON notes.kind = $2
ORDER BY notes.name
