-- Make dead jobs pending again; other jobs stay as they are.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined.
-- Returns a list of two: a string with one byte for each, 1 if it was dead; and those that were, see report.
local replies, reported = {}, {}
for index, id in ipairs(take_jobs()) do
  local r = load(id)
  local dead = r and r.state == DEAD
  if dead then
    requeue(r)
    report(reported, r, DEAD, '')
  end
  replies[index] = dead and '\1' or '\0'
end
return commit({ table.concat(replies), reported })
