-- End jobs that were not started before they expired. Make due jobs pending, and handed-off jobs that were not
-- acknowledged in time. Wake the lines of buckets whose tokens are due.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the limit for each kind; the retention times.
-- Returns a list of two: the number of jobs that became pending, and the jobs that expired, see report.
local limit, retention = take_number(), take_retention()
local expired, promoted = {}, 0
local ids = redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', NOW, 'LIMIT', 0, limit)
fetch(ids)
for _, id in ipairs(ids) do
  local r = load(id)
  if r and r.state < RUNNING and is_expired(r) then
    local old_state = r.state
    cancel(r, retention(r.queue), EXPIRED_TEXT)
    report(expired, r, old_state, EXPIRED_TEXT)
  else
    indexes[EXPIRIES][id] = false
  end
end
apply()
ids = redis.call('ZRANGEBYSCORE', DUE, '-inf', NOW, 'LIMIT', 0, limit)
fetch(ids)
for _, id in ipairs(ids) do
  local r = load(id)
  if r and r.state == SCHEDULED then
    promote(r)
    promoted = promoted + 1
  else
    indexes[DUE][id] = false
  end
end
apply()
local claims = redis.call('ZRANGEBYSCORE', HANDOFFS, '-inf', NOW, 'LIMIT', 0, limit)
if #claims == 0 then -- A deadline that is too far ahead is from before the clock was set back.
  local latest = string.format('(%.0f', NOW + ACKNOWLEDGED_WITHIN)
  claims = redis.call('ZRANGEBYSCORE', HANDOFFS, latest, '+inf', 'LIMIT', 0, limit)
end
for _, name in ipairs(claims) do
  local r = load(sub(name, 1, 16))
  if is_current(r, sub(name, 17)) then
    revoke_handoff(r)
    promoted = promoted + 1
  else
    indexes[HANDOFFS][name] = false
  end
end
apply()
local names = redis.call('ZRANGEBYSCORE', BUCKET_DUES, '-inf', NOW, 'LIMIT', 0, limit)
if #names > 0 then
  send('ZREM', BUCKET_DUES, names)
  for _, name in ipairs(names) do
    use_limits().free(name, math.huge)
  end
  promoted = promoted + use_limits().finish(BATCH)
end
publish()
return store_reply({ promoted, expired })
