-- End claims whose lease has expired: another run, or dead.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the limit; the time at which the lease had expired, '' for now; the
-- retention times.
-- Returns the jobs of the ended claims; see report.
local limit, expired_by, retention = take_number(), math.min(take_number() or NOW, NOW), take_retention()
local ids = redis.call('ZRANGEBYSCORE', LEASES, '-inf', expired_by, 'LIMIT', 0, limit)
local ended = {}
fetch(ids)
for _, id in ipairs(ids) do
  local r = load(id)
  if r and r.state == RUNNING then
    expire_claim(r, retention(r.queue), LEASE_EXPIRED_TEXT, ended)
  else
    indexes[LEASES][id] = false
  end
end
return commit(ended)
