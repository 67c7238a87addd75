-- Remove finished jobs whose retention is over, and reservations of ids and windows that have ended; of ten random waiting claims,
-- those whose client is gone; clients that have not acknowledged a hand-off for long; and idle buckets of rates.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the limit.
-- Returns the numbers of removed jobs and reservations.
local LONG = 600000000 -- microseconds
send('ZREM', HANDOFF_CLIENTS, redis.call('ZRANGEBYSCORE', HANDOFF_CLIENTS, '-inf', NOW - LONG, 'LIMIT', 0, CHUNK))
for _, member in ipairs(redis.call('ZRANDMEMBER', WAITING_CLAIMS, 10)) do
  local first = string.find(member, '\0', 1, true) + 9
  local subscribers = redis.pcall('PUBSUB', 'NUMSUB', HANDOFFS .. ':' .. sub(member, first, first + 15))
  if not subscribers.err and subscribers[2] == 0 then
    redis.call('ZREM', WAITING_CLAIMS, member)
  end
end
local limit = take_number()
local idle = redis.call('ZRANGEBYSCORE', IDLE_BUCKETS, '-inf', NOW, 'LIMIT', 0, limit)
send('ZREM', IDLE_BUCKETS, idle)
send('HDEL', BUCKETS, idle)
local freed = redis.call('ZRANGEBYSCORE', RESERVED_IDS, '-inf', NOW, 'LIMIT', 0, limit)
send('ZREM', RESERVED_IDS, freed)
for _, member in ipairs(freed) do
  if #member > 16 then
    holders[WINDOW .. sub(member, 17)] = false
  end
end
local ids = redis.call('ZRANGEBYSCORE', REMOVALS, '-inf', NOW, 'LIMIT', 0, limit)
fetch(ids)
for _, id in ipairs(ids) do
  local r = load(id)
  if r and r.state >= DONE then
    remove_from_indexes(r)
    erase(r)
  else
    indexes[REMOVALS][id] = false
  end
end
flush(true)
return store_reply({ #ids, #freed })
