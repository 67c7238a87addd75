-- Store the reply of a write that takes several statements.
-- $1 token  $2 reply
INSERT INTO dayjob.replies (token, reply) VALUES ($1::uuid, $2::text[])
