-- End claims whose lease has expired: another run, or dead.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: how many at most; how long jobs are kept.
-- Answers how many there were.
local kept = answered()
if kept then
  return kept
end
local limit, keeps = take_number(), take_keeps()
local ids = redis.call('ZRANGEBYSCORE', LEASES, '-inf', NOW, 'LIMIT', 0, limit)
if #ids == 0 then
  return 0
end
fetch(ids)
for _, id in ipairs(ids) do
  local r = load(id)
  if r and r.state == RUNNING then
    lapse(r, keeps(r.queue), 'lease expired')
  else
    places[LEASES][id] = false
  end
end
flush(true)
announce()
keep_answer(#ids)
return #ids
