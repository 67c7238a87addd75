-- Set new leases for the claims that are current.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; for each its epoch and its lease.
-- Answers a string with nine bytes for each: the new end of the lease, or NONE, and whether to stop.
local kept = answered()
if kept then
  return kept
end
local ids = take_ids()
fetch(ids)
local answers = {}
for index, id in ipairs(ids) do
  local epoch, lease = take_number(), take_number()
  local r = load(id)
  if is_current(r, epoch) then
    r.lease = to_time(NOW + lease)
    places[LEASES][id] = NOW + lease
    save(r)
    answers[index] = r.lease .. (r.cancel and '\1' or '\0')
  else
    answers[index] = NONE .. '\0'
  end
end
local answer = table.concat(answers)
flush(true)
keep_answer(answer)
return answer
