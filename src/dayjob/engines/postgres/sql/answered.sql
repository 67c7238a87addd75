-- The answer of a batch, if it was committed.
-- $1 token
SELECT answer FROM dayjob.batches WHERE token = $1::uuid
