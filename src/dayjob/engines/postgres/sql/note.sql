-- Keep the answer of a batch of several statements.
-- $1 token  $2 answer
INSERT INTO dayjob.batches (token, answer) VALUES ($1::uuid, $2::text[])
