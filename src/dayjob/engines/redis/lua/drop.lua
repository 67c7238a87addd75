-- Remove finished jobs that are in a state and, if an age is given, finished that long ago or earlier.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the state; the age or ''; the ids, joined.
-- Answers how many it removed.
local kept = answered()
if kept then
  return kept
end
local state, age = take_number(), take_number()
local ids = take_ids()
fetch(ids)
local dropped = 0
for _, id in ipairs(ids) do
  local r = load(id)
  if r and r.state == state and (not age or to_number(r.finished) <= NOW - age) then
    leave(r)
    erase(r)
    dropped = dropped + 1
  end
end
flush(true)
keep_answer(dropped)
return dropped
