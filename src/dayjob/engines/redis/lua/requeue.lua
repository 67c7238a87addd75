-- Dead jobs become pending again; others stay as they are.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined.
-- Answers a string with one byte for each: 1 if it was dead.
local kept = answered()
if kept then
  return kept
end
local ids = take_ids()
fetch(ids)
local answers = {}
for index, id in ipairs(ids) do
  local r = load(id)
  local dead = r and r.state == DEAD
  if dead then
    requeue(r)
  end
  answers[index] = dead and '\1' or '\0'
end
local answer = table.concat(answers)
flush(true)
announce()
keep_answer(answer)
return answer
