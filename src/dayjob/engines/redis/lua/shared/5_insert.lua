-- Storing jobs: for insert, insert_and_claim, compare_and_set, and the follow-up jobs of a settlement.
--
-- ARGV: the ids, joined; then for each job its queue, its numbers (flags: 1 run is relative, 2 expiry is
-- relative, 4 dedup until settled, 8 reserve the id; priority; max attempts; number of kv writes; run; expiry),
-- its dedup key or '', its facts, its payload or '' if the facts have it, and key and value of each kv write.
local INSERTION = '>BI4I4I4c8c8'

-- Return the id of the job that holds the dedup key. A stale entry, whose job does not hold it, is ignored.
local function holder_of(field, queue, dedup)
  local id = holders[field]
  if id == nil then
    id = redis.call('HGET', DEDUP, field)
  end
  local r = id and load(id)
  return r and r.held and r.queue == queue and r.dedup == dedup and id or nil
end

-- Return whether the id is reserved.
local function is_reserved(id)
  local until_time = redis.call('ZSCORE', RESERVED_IDS, id)
  return until_time and tonumber(until_time) > NOW
end

-- Return for each job '\1' if it was stored, else '\0' and the id of the existing job, as one string; and the last
-- job that was stored, if any.
local function insert()
  local ids = take_ids()
  fetch(ids)
  local replies, created = {}, nil
  for index, id in ipairs(ids) do
    local queue, numbers, dedup, facts, payload = take(), take(), take(), take(), take()
    local flags_, priority, max_attempts, kv_writes, run, expires = unpack_from(INSERTION, numbers)
    local reserves = band(flags_, 8) > 0
    local field, holder = nil, (exists(id) or reserves and is_reserved(id)) and id or nil
    if not holder and dedup ~= '' then
      field = queue .. '\0' .. dedup
      holder = holder_of(field, queue, dedup)
    end
    if holder then
      replies[index] = '\0' .. holder
      position = position + 2 * kv_writes
    else
      if band(flags_, 1) > 0 then
        run = to_time(NOW + to_number(run))
      end
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
      end
      add_to_indexes(r)
      for _ = 1, kv_writes do
        local key = take()
        writes[key] = take()
      end
      replies[index] = '\1'
    end
  end
  return table.concat(replies), created
end
