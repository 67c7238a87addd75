-- End jobs that were not started before they expired; make due jobs pending, and those that were handed over and
-- did not arrive.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: how many of each kind at most; how long jobs are kept.
-- Answers a list of two: how many became pending, how many expired.
local kept = answered()
if kept then
  return kept
end
local limit, keeps = take_number(), take_keeps()
local expired, promoted = 0, 0
local ids = redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', NOW, 'LIMIT', 0, limit)
fetch(ids)
for _, id in ipairs(ids) do
  local r = load(id)
  if r and r.state < RUNNING and is_expired(r) then
    end_waiting(r, keeps(r.queue), 'expired: not started in time')
    expired = expired + 1
  else
    places[EXPIRIES][id] = false
  end
end
if #ids > 0 then
  flush(true)
end
ids = redis.call('ZRANGEBYSCORE', DUE, '-inf', NOW, 'LIMIT', 0, limit)
fetch(ids)
for _, id in ipairs(ids) do
  local r = load(id)
  if r and r.state == SCHEDULED then
    promote(r)
    promoted = promoted + 1
  else
    places[DUE][id] = false
  end
end
if #ids > 0 then
  flush(true)
end
local claims = redis.call('ZRANGEBYSCORE', HANDED, '-inf', NOW, 'LIMIT', 0, limit)
for _, name in ipairs(claims) do
  local r = load(sub(name, 1, 16))
  if is_current(r, (unpack_from('>I4', name, 17))) then
    take_back(r, keeps(r.queue))
    promoted = promoted + 1
  else
    places[HANDED][name] = false
  end
end
if #claims > 0 then
  flush(true)
end
announce()
if expired + promoted > 0 then
  keep_answer({ promoted, expired })
end
return { promoted, expired }
