-- Stop or start handing out a queue's jobs; the queue counts as used.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the queue; '1' to stop, '0' to start.
local kept = answered()
if kept then
  return kept
end
local queue, paused = take(), take_number()
redis.call('SADD', QUEUES, queue)
if paused == 1 then
  redis.call('SADD', PAUSED, queue)
else
  redis.call('SREM', PAUSED, queue)
  woken[queue] = true
  announce()
end
keep_answer(1)
return 1
