-- Storing jobs: for insert, for insert_and_claim, for write_notes, and for the follow-ups of a settlement.
--
-- ARGV: the ids, joined; then for each job its queue, its numbers (flags: 1 run is relative, 2 expiry is
-- relative, 4 dedup until settled; priority; max attempts; how many kv writes; run; expiry), its dedup key or
-- '', its facts, and key and value of each kv write.
local INSERTION = '>BI4I4I4c8c8'

-- Who holds the dedup key, unless its record says that it holds none.
local function holder_of(field, queue, dedup)
  local id = holders[field]
  if id == nil then
    id = redis.call('HGET', DEDUP, field)
  end
  local r = id and load(id)
  return r and r.held and r.queue == queue and r.dedup == dedup and id or nil
end

-- One answer for each job: '\1' if it was stored, else '\0' and the id that stands in its way. And the last
-- job that was stored, if any.
local function insert()
  local ids = take_ids()
  fetch(ids)
  local answers, created = {}, nil
  for index, id in ipairs(ids) do
    local queue, numbers, dedup, facts = take(), take(), take(), take()
    local flags_, priority, max_attempts, kv_writes, run, expires = unpack_from(INSERTION, numbers)
    local field, holder = nil, exists(id) and id or nil
    if not holder and dedup ~= '' then
      field = queue .. '\0' .. dedup
      holder = holder_of(field, queue, dedup)
    end
    if holder then
      answers[index] = '\0' .. holder
      position = position + 2 * kv_writes
    else
      if band(flags_, 1) > 0 then
        run = to_time(NOW + to_number(run))
      end
      if band(flags_, 2) > 0 then
        expires = to_time(NOW + to_number(expires))
      end
      local r = {
        id = id, state = to_number(run) > NOW and SCHEDULED or WAITING, priority = priority, attempts = 0,
        max_attempts = max_attempts, epoch = 0, enqueued = NOW_TIME, run = run, claimed = NONE, lease = NONE,
        finished = NONE, expires = expires, remove = NONE, cancel = false, held = field ~= nil,
        settled = band(flags_, 4) > 0, queue = queue, dedup = dedup, worker = '', errors = '',
        progress = '', facts = facts,
      }
      created = r
      loaded[id] = r
      used[queue] = true
      places[IDS][id .. queue] = 0
      if field then
        holders[field] = id
      end
      enter(r)
      for _ = 1, kv_writes do
        local key = take()
        writes[key] = take()
      end
      answers[index] = '\1'
    end
  end
  return table.concat(answers), created
end
