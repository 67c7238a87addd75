-- Storing jobs: for insert, insert_and_claim, compare_and_set, and the follow-up jobs of a settlement.
--
-- ARGV: the ids, joined; then for each job its queue, its numbers (flags: 1 run is relative, 2 expiry is
-- relative, 4 dedup until settled, 8 reserve the id, 16 flow control, 32 max_pending, 64 debounce; priority; max attempts;
-- number of kv writes; run; expiry), its dedup key or '' (a global one begins with NUL), its facts, its payload or '' if the
-- facts have it; if the flags announce them, its flow control (the step of its turn or 0, the size of the tenant, the
-- tenant, the limits as in the record), max_pending of its queue, and its debounce (whether a waiting holder gets its call,
-- the longest delay, the duration of the window or 0); and key and value of each kv write.
local INSERTION, FLOW_ARGUMENT, BOUND_ARGUMENT, DEBOUNCE_ARGUMENT = '>BI4I4I4c8c8', 16, 32, 64
local DEBOUNCE, WINDOW, WINDOW_END = '>Bc8i8', '\0\0', '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

local bounds = {} -- of the queues with max_pending: its name, that, and the number of jobs that are due

-- Return the value of a field of DEDUP, with the changes of this script.
local function dedup_value(field)
  local value = holders[field]
  if value == nil then
    value = redis.call('HGET', DEDUP, field)
  end
  return value or nil
end

-- Return the job that holds the dedup key. A stale entry, whose job does not hold it, is ignored.
local function holder_of(field)
  local id = dedup_value(field)
  local r = id and load(id)
  return r and r.held and dedup_field(r.queue, r.dedup) == field and r or nil
end

-- Return the id of the job whose window holds the dedup key.
local function window_job(field)
  local window = dedup_value(WINDOW .. field)
  return window and to_number(window) > NOW and sub(window, 9) or nil
end

-- Give the holder of a key, if it waits, the call and the due time of a new job.
local function replace_call(r, call)
  if r.state < RUNNING then
    local run = call.run
    if call.max_delay ~= NONE then
      local latest = to_number(r.enqueued) + to_number(call.max_delay)
      run = to_number(run) > latest and to_time(latest) or run
    end
    if call.payload ~= '' or r.payload_size > 0 then
      payloads[r.id] = call.payload ~= '' and call.payload
    end
    r.facts, r.payload_size = call.facts, #call.payload
    reschedule(r, run)
  end
end

-- Return whether the id is reserved.
local function is_reserved(id)
  local until_time = redis.call('ZSCORE', RESERVED_IDS, id)
  return until_time and tonumber(until_time) > NOW
end

-- Count a job of a queue with max_pending, whether it is stored or not.
local function count_bounded(queue, max_pending, is_due)
  local bound = bounds[queue]
  if not bound then
    bound = { queue = queue, max_pending = max_pending, added = 0 }
    bounds[queue] = bound
    bounds[#bounds + 1] = bound
  end
  bound.added = bound.added + (is_due and 1 or 0)
end

-- Return the first queue without room for its jobs as a list: its name, its pending jobs, those to add, max_pending.
local function full_queue()
  for _, bound in ipairs(bounds) do
    local pending = tonumber(redis.call('HGET', COUNTS, PENDING_STATE .. bound.queue)) or 0
    local limited = tonumber(redis.call('HGET', COUNTS, LIMITED .. bound.queue)) or 0
    if bound.added > 0 and pending + limited + bound.added > bound.max_pending then
      return { bound.queue, pending + limited, bound.added, bound.max_pending }
    end
  end
  return nil
end

-- Return the turn of a queue, or the next free one of a tenant; nil for a new one.
local function turn_of(field)
  local turn = turns[field]
  if turn == nil then
    turn = tonumber(redis.call('HGET', TURNS, field))
  end
  return turn or nil
end

-- Return the turn of a tenant's new job, which takes the step. An entry of TENANTS may have an earlier turn than TURNS.
local function take_turn(queue, tenant, step)
  local field = queue .. '\0' .. tenant
  local free = turn_of(field)
  local turn = math.max(turn_of(queue) or 1, free or 1)
  turns[field] = turn + step
  if not free then
    indexes[TENANTS][queue .. '\0' .. pack('>I8', turn + step) .. tenant] = 0
  end
  return turn
end

-- Give a new job its turn, and the line that it has to join.
local function place_in_flow(r, flow)
  local step, size = unpack_from('>I4I2', flow)
  r.turn = step > 0 and take_turn(r.queue, sub(flow, 7, 6 + size), step) or 0
  r.line, r.limits = 0, sub(flow, 7 + size)
  if r.limits ~= '' and r.state == PENDING_STATE then
    r.line = use_limits().line_of(r)
    r.state = r.line > 0 and LIMITED or r.state
  end
end

-- Return for each job '\1' if it was stored, else '\0' and the id of the existing job, as one string; and the last
-- job that was stored, if any.
local function insert()
  local ids = take_jobs()
  local replies, created, calls = {}, nil, nil
  for index, id in ipairs(ids) do
    local queue, numbers, dedup, facts, payload = take(), take(), take(), take(), take()
    local flags_, priority, max_attempts, kv_writes, run, expires = unpack_from(INSERTION, numbers)
    local reserves = band(flags_, 8) > 0
    local flow = band(flags_, FLOW_ARGUMENT) > 0 and take() or nil
    if band(flags_, BOUND_ARGUMENT) > 0 then
      count_bounded(queue, take_number(), to_number(run) <= (band(flags_, 1) > 0 and 0 or NOW))
    end
    if band(flags_, 1) > 0 then
      run = to_time(NOW + to_number(run))
    end
    local replaces, max_delay, window = 0, nil, 0
    if flags_ >= DEBOUNCE_ARGUMENT then
      replaces, max_delay, window = unpack_from(DEBOUNCE, take())
    end
    local field, other = nil, (exists(id) or reserves and is_reserved(id)) and id or nil
    if not other and dedup ~= '' then
      field = dedup_field(queue, dedup)
      local holder = holder_of(field)
      other = holder and holder.id or window_job(field)
      if holder and replaces > 0 then
        calls = calls or {}
        calls[holder] = { run = run, max_delay = max_delay, facts = facts, payload = payload }
      end
    end
    if other then
      replies[index] = '\0' .. other
      position = position + 2 * kv_writes
    else
      if band(flags_, 2) > 0 then
        expires = to_time(NOW + to_number(expires))
      end
      local r = {
        id = id, state = to_number(run) > NOW and SCHEDULED or PENDING_STATE, priority = priority, attempts = 0,
        max_attempts = max_attempts, epoch = 0, claim = NO_CLAIM, enqueued = NOW_TIME, run = run, claimed = NONE,
        lease = NONE, finished = NONE, expires = expires, remove = NONE, cancel = false, held = field ~= nil,
        settled = band(flags_, 4) > 0, queue = queue, dedup = dedup, worker = '', errors = '',
        progress = '', facts = facts, payload_size = #payload, has_result = false,
      }
      if flow then
        place_in_flow(r, flow)
      end
      created = r
      loaded[id] = r
      if payload ~= '' then
        payloads[id] = payload
      end
      used[queue] = true
      indexes[IDS][id .. queue] = 0
      if reserves then
        indexes[RESERVED_IDS][id] = NOW + ID_RESERVATION
      end
      if field then
        holders[field] = id
        if window > 0 then
          holders[WINDOW .. field] = to_time(NOW + window) .. id
          indexes[RESERVED_IDS][WINDOW_END .. field] = NOW + window
        end
      end
      add_to_indexes(r)
      for _ = 1, kv_writes do
        local key = take()
        writes[key] = take()
      end
      replies[index] = '\1'
    end
  end
  for holder, call in pairs(calls or EMPTY) do
    replace_call(holder, call)
  end
  return table.concat(replies), created
end

-- Write the changes of `insert`, and wake the lines that replaced jobs have left. `flush` explains `when_full`.
local function apply_insert(when_full)
  flush(when_full)
  if #left > 0 then
    use_limits().finish(BATCH)
  end
end
