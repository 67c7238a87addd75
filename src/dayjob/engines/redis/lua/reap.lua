-- End claims whose lease has expired: another run, or dead.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the limit; the retention times.
-- Returns the number of ended claims.
local stored = stored_reply()
if stored then
  return stored
end
local limit, retention = take_number(), take_retention()
local ids = redis.call('ZRANGEBYSCORE', LEASES, '-inf', NOW, 'LIMIT', 0, limit)
fetch(ids)
for _, id in ipairs(ids) do
  local r = load(id)
  if r and r.state == RUNNING then
    expire_claim(r, retention(r.queue), LEASE_EXPIRED_TEXT)
  else
    indexes[LEASES][id] = false
  end
end
flush(true)
publish()
return store_reply(#ids)
