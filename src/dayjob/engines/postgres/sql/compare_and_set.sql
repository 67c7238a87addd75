-- Write documents, if all are as expected.
-- $1 token, or NULL  $2 now  $3 channel  $4 message, or NULL  $5 kinds  $6 names  $7 expected values  $8 new values
-- NULL is no document. Existing documents are locked first, then missing ones are inserted, both in the order of kind and
-- name, and only then are values changed, so that concurrent writers do not deadlock.
-- Replies whether they were written. If not, and several were expected not to exist, some of these may have been inserted,
-- and the caller must roll back. A document that is expected not to exist, and has no new value, is inserted empty; the
-- caller must remove it.
WITH :CLOCK,
given AS MATERIALIZED (
    SELECT * FROM unnest($5::text[], $6::text[], $7::bytea[], $8::bytea[]) AS given (kind, name, expected, value)
),
found AS MATERIALIZED (
    SELECT documents.kind, documents.name
    FROM given JOIN dayjob.documents ON documents.kind = ANY (ARRAY[given.kind]) AND documents.name = ANY (ARRAY[given.name])
    WHERE documents.value = given.expected
    ORDER BY given.kind COLLATE "C", given.name COLLATE "C"
    FOR UPDATE OF documents
),
inserted AS (
    INSERT INTO dayjob.documents (kind, name, written_at, value)
    SELECT kind, name, clock.now, coalesce(value, '')
    FROM clock, given
    WHERE expected IS NULL AND (SELECT count(*) FROM found) = (SELECT count(expected) FROM given)
    ORDER BY kind COLLATE "C", name COLLATE "C"
    ON CONFLICT DO NOTHING
    RETURNING kind
),
result AS MATERIALIZED (
    SELECT (SELECT count(*) FROM found) + (SELECT count(*) FROM inserted) = cardinality($5::text[]) AS written
),
changed AS (
    UPDATE dayjob.documents
    SET value = given.value, written_at = clock.now
    FROM clock, result, given
    WHERE documents.kind = ANY (ARRAY[given.kind]) AND documents.name = ANY (ARRAY[given.name])
        AND given.expected IS NOT NULL AND given.value IS NOT NULL AND result.written
),
removed AS (
    DELETE FROM dayjob.documents
    USING result, given
    WHERE documents.kind = ANY (ARRAY[given.kind]) AND documents.name = ANY (ARRAY[given.name])
        AND given.expected IS NOT NULL AND given.value IS NULL AND result.written
),
stored AS (
    INSERT INTO dayjob.replies (token, reply)
    SELECT $1::uuid, ARRAY[written::text] FROM result WHERE $1::uuid IS NOT NULL
)
SELECT ARRAY[written::text], CASE WHEN written AND $4::text IS NOT NULL AND :NOTIFICATIONS_FIT THEN pg_notify($3, $4) END FROM result
