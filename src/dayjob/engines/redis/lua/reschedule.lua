-- Change due time or priority of waiting jobs.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; for each its due time (packed) and its
-- priority, '' for what stays.
-- Answers a string with one byte for each: 1 if the job was waiting.
local kept = answered()
if kept then
  return kept
end
local ids = take_ids()
fetch(ids)
local answers = {}
for index, id in ipairs(ids) do
  local run, priority = take(), take_number()
  local r = load(id)
  local waiting = r and r.state < RUNNING
  if waiting then
    leave(r)
    r.priority = priority or r.priority
    if run ~= '' then
      r.run = run
      r.state = to_number(run) > NOW and SCHEDULED or WAITING
    end
    enter(r)
  end
  answers[index] = waiting and '\1' or '\0'
end
local answer = table.concat(answers)
flush(true)
announce()
keep_answer(answer)
return answer
