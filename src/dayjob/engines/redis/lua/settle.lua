-- End claims by the rules of the lifecycle, with their follow-up jobs and kv writes; lost ones change nothing.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; their numbers, joined (epoch; event;
-- flags: 1 error, 2 result, 4 progress, 8 follow-ups; how many kv writes; delay; how long it is kept if done,
-- dead, cancelled); for each what the flags announce (follow-ups as in shared/5_insertion.lua), and the kv
-- writes.
-- Answers a string with one byte for each: the new state, or 0 if the claim was lost.
local kept = answered()
if kept then
  return kept
end
local NUMBERS, NUMBERS_SIZE = '>I4BBI4c8c8c8c8', 42
local NOT_KEPT = to_time(0)
local ids, numbers = take_ids(), take()
fetch(ids)
local answers, applied = {}, false

-- Step over the jobs of a settlement that is not applied.
local function pass_over_jobs()
  for _ = 1, #take() / 16 do
    local _, _, _, kv_writes = unpack_from(INSERTION, ARGV[position + 2])
    position = position + 4 + 2 * kv_writes
  end
end

-- A success that leaves nothing behind, as most do, needs no more of its record than the fence.
local function succeed(id, epoch)
  local blob = loaded[id] == nil and raw[id]
  if not blob or #blob < FIXED_SIZE then
    return false
  end
  local format, state, bits, _, _, _, at_epoch = unpack_from('>BBBI4I4I4I4', blob)
  if format ~= FORMAT or state ~= RUNNING or at_epoch ~= epoch or bits % 4 > 0 then
    return false
  end
  local queue = sub(blob, FIXED_SIZE + 1, FIXED_SIZE + unpack_from('>I2', blob, 76))
  places[LEASES][id] = false
  places[IDS][id .. queue] = false
  saved[id], loaded[id] = false, false
  ended[#ended + 1] = id
  count(queue, RUNNING, -1)
  count(queue, DONE, 1)
  return true
end

for index, id in ipairs(ids) do
  local epoch, event, given, kv_writes, delay, done, dead, cancelled =
    unpack_from(NUMBERS, numbers, (index - 1) * NUMBERS_SIZE + 1)
  local error = given % 2 > 0 and take() or nil
  local result = given % 4 > 1 and take() or nil
  local progress = given % 8 > 3 and take() or nil
  local state = 0
  if event == ACK and given == 0 and kv_writes == 0 and done == NOT_KEPT and succeed(id, epoch) then
    state = DONE
  else
    local r = load(id)
    if is_current(r, epoch) then
      settle(r, event, to_number(delay), done .. dead .. cancelled, error, result, progress)
      state = r.state
    end
    if given >= 8 then
      if state > 0 then
        insert()
      else
        pass_over_jobs()
      end
    end
    for _ = 1, kv_writes do
      local key, value = take(), take()
      if state > 0 then
        writes[key] = value
      end
    end
  end
  applied = applied or state > 0
  answers[index] = string.char(state)
end
local answer = table.concat(answers)
if applied then
  flush(true)
  announce()
  keep_answer(answer)
end
return answer
