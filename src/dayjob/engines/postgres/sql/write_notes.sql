-- Write notes, if all are as expected.
-- $1 now  $2 token  $3 channel  $4 news  $5 kinds  $6 names  $7 expected values  $8 new values; NULL is no such note
-- First those that are there are locked, then the others are stored, both in the order of kind and name, and
-- only then is anything changed: so no two writers wait for one another in a circle.
-- Answers whether they were written. If not, and several were expected not to be there, some of these may have
-- been stored, and the caller has to undo it. What is not to be there after all is stored empty, to be removed.
WITH clock AS MATERIALIZED (
    SELECT dayjob.now_us($1) AS now
),
given AS MATERIALIZED (
    SELECT * FROM unnest($5::text[], $6::text[], $7::bytea[], $8::bytea[]) AS given (kind, name, expected, value)
),
found AS MATERIALIZED (
    SELECT notes.kind, notes.name
    FROM given JOIN dayjob.notes ON notes.kind = given.kind AND notes.name = given.name
    WHERE notes.value = given.expected
    ORDER BY notes.kind, notes.name
    FOR UPDATE OF notes
),
stored AS (
    INSERT INTO dayjob.notes (kind, name, written_at, value)
    SELECT kind, name, clock.now, coalesce(value, '')
    FROM clock, given
    WHERE expected IS NULL AND (SELECT count(*) FROM found) = (SELECT count(expected) FROM given)
    ORDER BY kind COLLATE "C", name COLLATE "C"
    ON CONFLICT DO NOTHING
    RETURNING kind
),
answer AS MATERIALIZED (
    SELECT (SELECT count(*) FROM found) + (SELECT count(*) FROM stored) = cardinality($5::text[]) AS written
),
changed AS (
    UPDATE dayjob.notes
    SET value = given.value, written_at = clock.now
    FROM clock, answer, given
    WHERE notes.kind = given.kind AND notes.name = given.name
        AND given.expected IS NOT NULL AND given.value IS NOT NULL AND answer.written
),
removed AS (
    DELETE FROM dayjob.notes
    USING answer, given
    WHERE notes.kind = given.kind AND notes.name = given.name
        AND given.expected IS NOT NULL AND given.value IS NULL AND answer.written
),
noted AS (
    INSERT INTO dayjob.batches (token, answer)
    SELECT $2::uuid, ARRAY[written::text] FROM answer WHERE $2::uuid IS NOT NULL
)
SELECT written, CASE WHEN written AND $4::text IS NOT NULL THEN pg_notify($3, $4) END FROM answer
