-- Return the claims with a cancel request. Remove the entries of CANCEL_REQUESTS without one, which damage leaves.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined.
-- Returns a string with 32 bytes for each: the id and the claim.
local claims = {}
for _, id in ipairs(take_jobs()) do
  local r = load(id)
  if r and r.state == RUNNING and r.cancel then
    claims[#claims + 1] = id .. r.claim
  else
    cancels[id] = false
  end
end
if next(cancels) or next(saved) then
  flush(true)
end
return table.concat(claims)
