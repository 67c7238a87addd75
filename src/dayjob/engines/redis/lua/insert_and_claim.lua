-- `insert`, then `claim`, in one commit.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the jobs, then the requests.
-- Returns a list of two: the replies of `insert` and of `claim`.
local stored = stored_reply()
if stored then
  return stored.err and stored or { stored[1], claimed_again(stored[2]) }
end
local enqueued, created = insert()
local full = full_queue()
if full then
  return store_reply({ full, {} })
end
if created or next(saved) then
  apply_insert(not created)
end
local replies, ids = claim_all()
publish()
store_reply({ enqueued, ids })
return { enqueued, replies }
