-- Return the claims with a cancel request. Remove the entries of CANCEL_REQUESTS without one, which damage leaves.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined.
-- Returns a string with 20 bytes for each claim: the id and the epoch.
local ids = take_ids()
fetch(ids)
local claims = {}
for _, id in ipairs(ids) do
  local r = load(id)
  if r and r.state == RUNNING and r.cancel then
    claims[#claims + 1] = id .. pack('>I4', r.epoch)
  else
    cancels[id] = false
  end
end
if next(cancels) or next(saved) then
  flush(true)
end
return table.concat(claims)
