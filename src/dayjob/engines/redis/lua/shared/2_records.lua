-- Records: one string per job, without a large payload and its result; record.py has the same layout. Times stay packed
-- (8 bytes, big endian) unless they are compared: a double would round times beyond its precision.
local FORMAT = 2
local FIXED = '>BBBI4I4I4I8c16c8c8c8c8c8c8c8I2I2I2I4I4I4I4'
local FIXED_SIZE, CLAIM_AT, SIZES_AT, PAYLOAD_SIZE_AT = 117, 24, 96, 114
local NONE = '\128\0\0\0\0\0\0\0'
local NO_CLAIM = string.rep('\0', 16)

local CANCEL_FLAG, HELD_FLAG, SETTLED_FLAG, ERROR_FLAG, RESULT_FLAG = 1, 2, 4, 8, 16
local band = bit.band

local function to_time(number)
  return pack('>i8', number)
end

local function to_number(time)
  return (unpack_from('>i8', time))
end

local NOW_TIME = to_time(NOW)

-- Return the record as a table, or nil if it can't be read.
local function decode(id, blob)
  local ok, format, state, flags, priority, attempts, max_attempts, epoch, claim, enqueued, run, claimed,
    lease, finished, expires, remove, queue_size, dedup_size, worker_size, error_size, errors_size,
    progress_size, payload_size = pcall(unpack_from, FIXED, blob)
  if not ok or format ~= FORMAT or state < SCHEDULED or state > CANCELLED then
    return nil
  end
  local dedup_at = FIXED_SIZE + 1 + queue_size
  local worker_at = dedup_at + dedup_size
  local error_at = worker_at + worker_size
  local errors_at = error_at + error_size
  local progress_at = errors_at + errors_size
  local facts_at = progress_at + progress_size
  if facts_at > #blob + 1 then
    return nil
  end
  return {
    id = id, state = state, priority = priority, attempts = attempts, max_attempts = max_attempts,
    epoch = epoch, claim = claim, enqueued = enqueued, run = run, claimed = claimed, lease = lease,
    finished = finished, expires = expires, remove = remove,
    cancel = band(flags, CANCEL_FLAG) > 0, held = band(flags, HELD_FLAG) > 0,
    settled = band(flags, SETTLED_FLAG) > 0,
    queue = sub(blob, FIXED_SIZE + 1, dedup_at - 1), dedup = sub(blob, dedup_at, worker_at - 1),
    worker = sub(blob, worker_at, error_at - 1),
    error = band(flags, ERROR_FLAG) > 0 and sub(blob, error_at, errors_at - 1) or nil,
    errors = sub(blob, errors_at, progress_at - 1), progress = sub(blob, progress_at, facts_at - 1),
    has_result = band(flags, RESULT_FLAG) > 0, payload_size = payload_size, facts = sub(blob, facts_at),
  }
end

local function encode(r)
  local flags = (r.cancel and CANCEL_FLAG or 0) + (r.held and HELD_FLAG or 0)
    + (r.settled and SETTLED_FLAG or 0) + (r.error and ERROR_FLAG or 0) + (r.has_result and RESULT_FLAG or 0)
  local error = r.error or ''
  return pack(FIXED, FORMAT, r.state, flags, r.priority, r.attempts, r.max_attempts, r.epoch, r.claim,
    r.enqueued, r.run, r.claimed, r.lease, r.finished, r.expires, r.remove, #r.queue, #r.dedup, #r.worker, #error,
    #r.errors, #r.progress, r.payload_size)
    .. r.queue .. r.dedup .. r.worker .. error .. r.errors .. r.progress .. r.facts
end

-- Return the member of PENDING. Bytewise order is (priority, id) within the queue, whose name has no NUL.
local function pending_member(r)
  return r.queue .. '\0' .. pack('>I4', r.priority) .. r.id
end

local function finished_member(state, queue, id)
  return state .. queue .. '\0' .. id
end

-- Return the members of DEAD_INDEX for all queues and for the job's own. Bytewise order is (time, id).
local function dead_members(r)
  local member = '\0' .. r.finished .. r.id
  return member, r.queue .. member
end
