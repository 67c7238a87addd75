-- Remove finished jobs whose time of removal has come.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: how many at most.
-- Answers how many there were.
local kept = answered()
if kept then
  return kept
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
