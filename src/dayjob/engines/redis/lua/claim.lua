-- Claim pending jobs in (priority, turn, id) order. Those without room move to the lines of their limits.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the number of waiting claims to remove, and their members; the
-- requests (shared/7_claim.lua).
-- Returns for each request a list: id, record, payload, id, record, payload, ...; or the member of its waiting claim.
local stored = stored_reply()
if stored then
  return stored.err and stored or claimed_again(stored)
end
local withdrawn = false
for _ = 1, take_number() do
  local member = take()
  if redis.call('ZREM', WAITING_CLAIMS, member) == 0 and withdraw_handoff(member) then
    withdrawn = true
  end
end
if withdrawn then
  flush(true) -- so that the claims find these jobs in their places
end
local replies, ids = claim_all()
if limiter or withdrawn then
  publish()
end
store_reply(ids)
return replies
