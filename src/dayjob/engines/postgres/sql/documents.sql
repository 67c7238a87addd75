-- Return the time, and the documents of a kind in name order; one row without a name if there are none.
-- $1 now  $2 kind
SELECT clock.now, documents.name, documents.value, documents.written_at
FROM (SELECT dayjob.now_us($1) AS now) AS clock
LEFT JOIN dayjob.documents ON documents.kind = $2
ORDER BY documents.name
