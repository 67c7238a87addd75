-- Change the due time or the priority of waiting jobs.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; for each its due time (packed) and its
-- priority, '' for no change.
-- Returns a string with one byte for each: 1 if the job was waiting.
local replies = {}
for index, id in ipairs(take_jobs()) do
  local run, priority = take(), take_number()
  local r = load(id)
  local waiting = r and r.state < RUNNING
  if waiting then
    reschedule(r, run ~= '' and run or nil, priority)
  end
  replies[index] = waiting and '\1' or '\0'
end
return commit(table.concat(replies))
