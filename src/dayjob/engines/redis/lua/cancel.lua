-- End waiting jobs as cancelled; flag running ones.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; how long jobs are kept (`take_keeps`).
-- Answers a string with one byte for each: 0 not found, 1 ended, 2 asked to stop.
local kept = answered()
if kept then
  return kept
end
local ids = take_ids()
local keeps = take_keeps()
fetch(ids)
local answers = {}
for index, id in ipairs(ids) do
  local r = load(id)
  answers[index] = '\0'
  if r and r.state == RUNNING then
    r.cancel = true
    flags[id] = true
    is_cancel = true
    save(r)
    answers[index] = '\2'
  elseif r and r.state < RUNNING then
    end_waiting(r, keeps(r.queue))
    answers[index] = '\1'
  end
end
local answer = table.concat(answers)
flush(true)
announce()
keep_answer(answer)
return answer
