-- End claims by the rules of the lifecycle, with their follow-up jobs and kv writes. A lost claim changes nothing.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; their numbers, joined (claim;
-- transition; flags: 1 error, 2 result, 4 progress, 8 follow-up jobs, 16 max_attempts, 32 charges; number of kv writes; delay;
-- retention if done, dead, cancelled); for each the values that its flags announce (max_attempts and charges before follow-up jobs,
-- which are as in shared/6_insert.lua), and the kv writes.
-- Returns a string with one byte for each: the new state, or 0 if the claim was lost; then the replies of `insert` for the
-- follow-up jobs of those that were applied.
local NUMBERS, NUMBERS_SIZE = '>c16BBI4c8c8c8c8', 54
local NOT_KEPT = to_time(0)
local ids, numbers = take_jobs(), take()
local replies, inserted = {}, {}

-- Skip the follow-up jobs of a settlement that is not applied.
local function skip_jobs()
  for _ = 1, #take() / 16 do
    local flags_, _, _, kv_writes = unpack_from(INSERTION, ARGV[position + 2])
    local given = (band(flags_, FLOW_ARGUMENT) > 0 and 1 or 0) + (flags_ >= DEBOUNCE_ARGUMENT and 1 or 0)
    position = position + 5 + given + 2 * kv_writes
  end
end

-- Apply an ack of a job that is not kept and has no dedup key, cancel request or result, without decoding its record.
local function ack_plain(id, claim)
  local blob = loaded[id] == nil and raw[id]
  if not blob or #blob < FIXED_SIZE then
    return false
  end
  local format, state, bits = unpack_from('BBB', blob)
  if format ~= FORMAT or state ~= RUNNING or sub(blob, CLAIM_AT, CLAIM_AT + 15) ~= claim or bits % 4 > 0
    or bits % FLOW_FLAG >= RESULT_FLAG then
    return false
  end
  if bits >= FLOW_FLAG then
    local queue_size, dedup_size, worker_size, error_size, errors_size, progress_size =
      unpack_from('>I2I2I2I4I4I4', blob, SIZES_AT)
    local at = FIXED_SIZE + 1 + queue_size + dedup_size + worker_size + error_size + errors_size + progress_size
    if at + FLOW_SIZE > #blob + 1 then
      return false
    end
    local first = at + FLOW_SIZE
    leave({ state = RUNNING, line = 0, limits = sub(blob, first, first + unpack_from('>I2', blob, at) - 1) })
  end
  local queue = sub(blob, FIXED_SIZE + 1, FIXED_SIZE + unpack_from('>I2', blob, SIZES_AT))
  indexes[LEASES][id] = false
  indexes[IDS][id .. queue] = false
  saved[id], loaded[id] = false, false
  if unpack_from('>I4', blob, PAYLOAD_SIZE_AT) > 0 then
    payloads[id] = false
  end
  ended[#ended + 1] = id
  count(queue, RUNNING, -1)
  count(queue, DONE, 1)
  return true
end

for index, id in ipairs(ids) do
  local claim, transition, given, kv_writes, delay, done, dead, cancelled =
    unpack_from(NUMBERS, numbers, (index - 1) * NUMBERS_SIZE + 1)
  local error = given % 2 > 0 and take() or nil
  local result = given % 4 > 1 and take() or nil
  local progress = given % 8 > 3 and take() or nil
  local max_attempts = given % 32 > 15 and take_number() or nil
  local charges = given % 64 > 31 and take() or nil
  local state = 0
  if transition == ACK and given == 0 and kv_writes == 0 and done == NOT_KEPT and ack_plain(id, claim) then
    state = DONE
  else
    local r = load(id)
    if is_current(r, claim) then
      r.max_attempts = max_attempts or r.max_attempts
      settle(r, transition, to_number(delay), done .. dead .. cancelled, error, result, progress)
      state = r.state
      if charges then
        use_limits().charge(charges)
      end
    end
    if given % 16 > 7 then
      if state > 0 then
        inserted[#inserted + 1] = insert()
      else
        skip_jobs()
      end
    end
    for _ = 1, kv_writes do
      local key, value = take(), take()
      if state > 0 then
        writes[key] = value
      end
    end
  end
  replies[index] = string.char(state)
end
return commit(table.concat(replies) .. table.concat(inserted))
