-- Claim pending jobs in (priority, turn, id) order. Those without room move to the lines of their limits.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the number of waiting claims to remove, and their members; the
-- requests (shared/7_claim.lua).
-- Returns for each request a list: id, record, payload, id, record, payload, ...; or the member of its waiting claim.
local stored = stored_reply()
if stored then
  return stored.err and stored or claimed_again(stored)
end
for _ = 1, take_number() do
  redis.call('ZREM', WAITING_CLAIMS, take())
end
local replies, ids = claim_all()
if limiter then
  publish()
end
store_reply(ids)
return replies
