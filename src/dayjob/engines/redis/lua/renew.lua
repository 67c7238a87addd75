-- Set new leases for the claims that are current.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; for each its claim and its lease.
-- Returns a string with nine bytes for each: the new end of the lease, or NONE, and whether a cancel is requested.
local replies = {}
for index, id in ipairs(take_jobs()) do
  local claim, lease = take(), take_number()
  local r = load(id)
  if is_current(r, claim) then
    r.lease = to_time(NOW + lease)
    indexes[LEASES][id] = NOW + lease
    save(r)
    replies[index] = r.lease .. (r.cancel and '\1' or '\0')
  else
    replies[index] = NONE .. '\0'
  end
end
flush(true)
return store_reply(table.concat(replies))
