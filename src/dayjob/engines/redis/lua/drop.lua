-- Remove finished jobs that are in a state and, if an age is given, finished that long ago or earlier.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the state; the age or ''; the caller's next cursor or ''; the
-- ids, joined.
-- Returns a list of two: the number of removed jobs, and the cursor, so that a repetition continues from the same id.
local state, age, cursor = take_number(), take_number(), take()
local dropped = 0
for _, id in ipairs(take_jobs()) do
  local r = load(id)
  if r and r.state == state and (not age or to_number(r.finished) <= NOW - age) then
    remove_from_indexes(r)
    erase(r)
    dropped = dropped + 1
  end
end
flush(true)
return store_reply({ dropped, cursor })
