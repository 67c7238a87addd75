-- Stop or start claims from a queue; the queue counts as used.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the queue; '1' to stop, '0' to start.
local queue, paused = take(), take_number()
redis.call('SADD', QUEUES, queue)
if paused == 1 then
  redis.call('SADD', PAUSED, queue)
else
  redis.call('SREM', PAUSED, queue)
  claimable[queue] = true
  publish()
end
return store_reply(1)
