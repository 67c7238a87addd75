-- Return the stored reply of a write, if it was committed.
-- $1 token
SELECT reply FROM dayjob.replies WHERE token = $1::uuid
