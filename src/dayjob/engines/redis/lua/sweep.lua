-- Remove finished jobs whose time of removal has come; and, of some seats, those whose process has ended.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: how many at most.
-- Answers how many there were.
local kept = answered()
if kept then
  return kept
end
for _, member in ipairs(redis.call('ZRANDMEMBER', SEATS, 10)) do
  local first = string.find(member, '\0', 1, true) + 9
  local listening = redis.pcall('PUBSUB', 'NUMSUB', SEATS .. ':' .. sub(member, first, first + 15))
  if not listening.err and listening[2] == 0 then
    redis.call('ZREM', SEATS, member)
  end
end
local ids = redis.call('ZRANGEBYSCORE', REMOVALS, '-inf', NOW, 'LIMIT', 0, take_number())
if #ids == 0 then
  return 0
end
fetch(ids)
for _, id in ipairs(ids) do
  local r = load(id)
  if r and r.state >= DONE then
    leave(r)
    erase(r)
  else
    places[REMOVALS][id] = false
  end
end
flush(true)
keep_answer(#ids)
return #ids
