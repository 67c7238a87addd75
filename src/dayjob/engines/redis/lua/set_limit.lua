-- Write or remove the document of a limit, and wake the lines of its buckets. Each step examines one page of buckets.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the name; '1' and the value, or '0' to remove it; the last bucket of
-- the step before, or ''; the number of jobs that earlier steps made pending.
-- Returns a list of three: this step, or the later one whose stored reply it returns; the last bucket of the page, '' after
-- the last page; the number of jobs that all steps so far made pending.
local PAGE = 250
local name = take()
local value = take_number() == 1 and take() or nil
local cursor, before = take(), take_number()
flush(true)
if STEP == 0 then
  local prefix = LIMITS_KIND .. '\0' .. name
  local from, to = '[' .. prefix .. '\0', '(' .. prefix .. '\1'
  send('ZREM', DOCUMENTS, redis.call('ZRANGEBYLEX', DOCUMENTS, from, to, 'LIMIT', 0, CHUNK))
  if value then
    redis.call('ZADD', DOCUMENTS, 0, prefix .. '\0' .. NOW_TIME .. value)
  end
  if redis.call('ZRANGEBYLEX', LINES, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', 0, 1)[1] then
    use_limits().free(name, math.huge)
  end
end
-- The buckets with a key follow in the order of their names. ';' follows ':'.
local from, to, size = '[' .. (cursor == '' and name .. ':' or cursor .. '\1'), '(' .. name .. ';', 0
while size < PAGE do
  local member = redis.call('ZRANGEBYLEX', LINES, from, to, 'LIMIT', 0, 1)[1]
  if not member then
    break
  end
  cursor = sub(member, 1, (string.find(member, '\0', 1, true) or 0) - 1)
  use_limits().free(cursor, math.huge)
  from, size = '[' .. cursor .. '\1', size + 1
end
local woken = before + use_limits().finish(BATCH - before)
publish()
return store_reply({ STEP, size == PAGE and cursor or '', woken })
