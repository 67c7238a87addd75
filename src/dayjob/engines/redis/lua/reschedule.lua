-- Change the due time or the priority of scheduled and pending jobs.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; for each its due time (packed) and its
-- priority, '' for no change.
-- Returns a string with one byte for each: 1 if the job was scheduled or pending.
local ids = take_ids()
fetch(ids)
local replies = {}
for index, id in ipairs(ids) do
  local run, priority = take(), take_number()
  local r = load(id)
  local waiting = r and r.state < RUNNING
  if waiting then
    remove_from_indexes(r)
    r.priority = priority or r.priority
    if run ~= '' then
      r.run = run
      r.state = to_number(run) > NOW and SCHEDULED or PENDING_STATE
    end
    add_to_indexes(r)
  end
  replies[index] = waiting and '\1' or '\0'
end
return commit(table.concat(replies))
