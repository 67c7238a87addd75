-- Return the queues with pending jobs, in name order, one page per call. Other queues cost nothing, however many exist.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the last queue of the page before, or ''; the size of a page.
local queue, size = take(), take_number()
local queues, from = {}, queue == '' and '-' or '[' .. queue .. '\1'
while #queues < size do
  local member = redis.call('ZRANGEBYLEX', PENDING, from, '+', 'LIMIT', 0, 1)[1]
  if not member then
    break
  end
  queue = sub(member, 1, string.find(member, '\0', 1, true) - 1)
  queues[#queues + 1] = queue
  from = '[' .. queue .. '\1'
end
return queues
