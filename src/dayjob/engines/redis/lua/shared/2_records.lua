-- Records: one string per job, without a large payload and its result; record.py has the same layout. Times stay packed
-- (8 bytes, big endian) unless they are compared: a double would round times beyond its precision.
local FORMAT = 2
local FIXED = '>BBBI4I4I4I8c16c8c8c8c8c8c8c8I2I2I2I4I4I4I4'
local FIXED_SIZE, CLAIM_AT, SIZES_AT, PAYLOAD_SIZE_AT = 117, 24, 96, 114
local NONE = '\128\0\0\0\0\0\0\0'
local NO_CLAIM = string.rep('\0', 16)
local LAST_ID = '\255\255\255\255\255\255\255\255\255\255\255\255\255\255\255\255'

local CANCEL_FLAG, HELD_FLAG, SETTLED_FLAG, ERROR_FLAG, RESULT_FLAG, FLOW_FLAG = 1, 2, 4, 8, 16, 32
local SALT_FLAG = 64 -- with RESULT_FLAG, of a result that ends with a salt; results of layout 5 have none
-- A record with FLOW_FLAG has a flow part before its facts: the size of its limits, its turn, the number
-- of the limit whose line it is in or 0, and its limits, each with its units, the size of the bucket's name, and that.
local FLOW, FLOW_SIZE = '>I2I8B', 11
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
  if not ok or format ~= FORMAT or state > CANCELLED then
    return nil
  end
  local dedup_at = FIXED_SIZE + 1 + queue_size
  local worker_at = dedup_at + dedup_size
  local error_at = worker_at + worker_size
  local errors_at = error_at + error_size
  local progress_at = errors_at + errors_size
  local flow_at = progress_at + progress_size
  local facts_at, limits_size, turn, line, limits = flow_at, nil, nil, nil, nil
  if band(flags, FLOW_FLAG) > 0 then
    facts_at = flow_at + FLOW_SIZE
    if facts_at > #blob + 1 then
      return nil
    end
    limits_size, turn, line = unpack_from(FLOW, blob, flow_at)
    limits = sub(blob, facts_at, facts_at + limits_size - 1)
    facts_at = facts_at + limits_size
  end
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
    errors = sub(blob, errors_at, progress_at - 1), progress = sub(blob, progress_at, flow_at - 1),
    has_result = band(flags, RESULT_FLAG) > 0, is_salted = flags >= SALT_FLAG, payload_size = payload_size,
    facts = sub(blob, facts_at), turn = turn, line = line, limits = limits,
  }
end

local function encode(r)
  local flags = (r.cancel and CANCEL_FLAG or 0) + (r.held and HELD_FLAG or 0)
    + (r.settled and SETTLED_FLAG or 0) + (r.error and ERROR_FLAG or 0) + (r.has_result and RESULT_FLAG or 0)
    + (r.is_salted and SALT_FLAG or 0)
  local error, flow = r.error or '', ''
  if r.limits then
    flags = flags + FLOW_FLAG
    flow = pack(FLOW, #r.limits, r.turn, r.line) .. r.limits
  end
  return pack(FIXED, FORMAT, r.state, flags, r.priority, r.attempts, r.max_attempts, r.epoch, r.claim,
    r.enqueued, r.run, r.claimed, r.lease, r.finished, r.expires, r.remove, #r.queue, #r.dedup, #r.worker, #error,
    #r.errors, #r.progress, r.payload_size)
    .. r.queue .. r.dedup .. r.worker .. error .. r.errors .. r.progress .. flow .. r.facts
end

-- Return the end of a member of PENDING or LINES. Bytewise order is (priority, turn, id). Only a job of a fair queue has
-- a turn; the bytes before it put it after every id.
local function place(r)
  local turn = (r.turn or 0) > 0 and LAST_ID .. pack('>I8', r.turn) or ''
  return pack('>I4', r.priority) .. turn .. r.id
end

-- Return the member of PENDING. The name of a queue has no NUL.
local function pending_member(r)
  return r.queue .. '\0' .. place(r)
end

local limit_lists = {} -- limits of records, or charges of settlements -> list

-- Return the limits of a record, if it has any, as a list of pairs: bucket and units. Jobs with equal limits share it.
local function limits_of(limits)
  limits = limits or ''
  local list, at = limit_lists[limits], 1
  if not list then
    list = {}
    while at + 5 <= #limits do
      local units, size = unpack_from('>i4I2', limits, at)
      list[#list + 1] = { sub(limits, at + 6, at + 5 + size), units }
      at = at + 6 + size
    end
    limit_lists[limits] = list
  end
  return list
end

-- Return the member of LINES of a limited job. The name of a bucket has no NUL.
local function line_member(r)
  local limit = limits_of(r.limits)[r.line] or { '' }
  return limit[1] .. '\0' .. r.queue .. '\0' .. place(r)
end

local function finished_member(state, queue, id)
  return state .. queue .. '\0' .. id
end

-- Return the members of DEAD_INDEX for all queues and for the job's own. Bytewise order is (time, id).
local function dead_members(r)
  local member = '\0' .. r.finished .. r.id
  return member, r.queue .. member
end
