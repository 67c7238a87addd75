-- A script collects its changes here; the last change of each entry wins. `flush` writes them: removals first,
-- because a full server refuses a script whose first write may need memory.
local raw = {} -- id -> the stored string, or false
local loaded = {} -- id -> record, or false if there is none
local saved = {} -- id -> record, or false to remove it
local payloads = {} -- id -> payload, or false to remove it
local results = {} -- id -> result, or false to remove it
local holders = {} -- field of DEDUP -> id, or false
local cancels = {} -- id -> whether it belongs to CANCEL_REQUESTS
local writes = {} -- user key -> value
local counts = {} -- queue -> state -> difference
local used = {} -- queues to add to QUEUES
local turns = {} -- field of TURNS -> turn, or false to remove it
local indexes = setmetatable({}, { -- sorted set -> member -> score, or false to remove it
  __index = function(all, index)
    all[index] = {}
    return all[index]
  end,
})
local EMPTY = {}
local claimable = {} -- queues that may have a new pending job
local ended = {} -- ids of jobs that finished
local due_changed, cancel_requested = false, false

local function count(queue, state, difference)
  local of_queue = counts[queue]
  if not of_queue then
    of_queue = {}
    counts[queue] = of_queue
  end
  of_queue[state] = (of_queue[state] or 0) + difference
end

-- Read many records at once, without their payloads.
local function fetch(ids)
  for first = 1, #ids, CHUNK do
    local last = math.min(first + CHUNK - 1, #ids)
    local blobs = redis.call('HMGET', JOBS, unpack(ids, first, last))
    for index = first, last do
      raw[ids[index]] = blobs[index - first + 1]
    end
  end
end

-- Return the ids at the ends of index entries, after reading their records.
local function fetch_members(members)
  local ids = {}
  for index, member in ipairs(members) do
    ids[index] = sub(member, -16)
  end
  fetch(ids)
  return ids
end

-- Return the 16-byte ids of one argument, after reading their records.
local function take_jobs()
  local joined, ids = take(), {}
  for first = 1, #joined, 16 do
    ids[#ids + 1] = sub(joined, first, first + 15)
  end
  fetch(ids)
  return ids
end

local function exists(id)
  if loaded[id] ~= nil then
    return loaded[id] ~= false
  end
  return raw[id] ~= false
end

local function index_dead(r, score)
  local of_all, of_queue = dead_members(r)
  indexes[DEAD_INDEX][of_all], indexes[DEAD_INDEX][of_queue] = score, score
end

-- Give a record that can't be read a new head, rebuilt from the other keys. The old string becomes its facts, which
-- can't be decoded, so that a claim quarantines the job.
local function repair(id, blob)
  local entry = redis.call('ZRANGEBYLEX', IDS, '[' .. id, '+', 'LIMIT', 0, 1)[1]
  if not entry or sub(entry, 1, 16) ~= id then
    return nil
  end
  local r = {
    id = id, state = PENDING_STATE, priority = 1000, attempts = 1, max_attempts = 1,
    epoch = 0, claim = NO_CLAIM, enqueued = to_time(0), run = to_time(0), claimed = NONE, lease = NONE,
    finished = NONE, expires = NONE, remove = NONE, cancel = false, held = false, settled = false,
    queue = sub(entry, 17), dedup = '', worker = '', error = 'corrupt record: its head can\'t be read', errors = '',
    progress = '', facts = blob, payload_size = redis.call('HSTRLEN', PAYLOADS, id),
    has_result = redis.call('HEXISTS', RESULTS, id) == 1,
  }
  r.is_salted = r.has_result
  local lease, due = redis.call('ZSCORE', LEASES, id), redis.call('ZSCORE', DUE, id)
  if lease then
    r.state, r.lease = RUNNING, to_time(tonumber(lease))
    r.cancel = redis.call('SISMEMBER', CANCEL_REQUESTS, id) == 1
  elseif due then
    r.state, r.run = SCHEDULED, to_time(tonumber(due))
  else
    for state = DONE, CANCELLED do
      if redis.call('ZSCORE', FINISHED, finished_member(state, r.queue, id)) then
        r.state, r.finished = state, NOW_TIME
        local remove = redis.call('ZSCORE', REMOVALS, id)
        r.remove = remove and to_time(tonumber(remove)) or NONE
      end
    end
  end
  if r.state == PENDING_STATE then
    indexes[PENDING][pending_member(r)] = 0
  elseif r.state == DEAD then
    index_dead(r, 0)
  end
  indexes[EXPIRIES][id] = false
  saved[id] = r
  return r
end

local function load(id)
  local r = loaded[id]
  if r ~= nil then
    return r or nil
  end
  local blob = raw[id]
  if blob == nil then
    blob = redis.call('HGET', JOBS, id)
  end
  r = blob and (decode(id, blob) or repair(id, blob)) or false
  loaded[id] = r
  return r or nil
end

-- Save a record whose index entries stay the same.
local function save(r)
  r.encoded = nil
  saved[r.id] = r
end

-- Remove a job from the indexes of its state, before the state changes.
local function remove_from_indexes(r)
  local id, state = r.id, r.state
  if state == PENDING_STATE then
    indexes[PENDING][pending_member(r)] = false
  elseif state == SCHEDULED then
    indexes[DUE][id] = false
  elseif state == LIMITED then
    indexes[LINES][line_member(r)] = false
  elseif state == RUNNING then
    indexes[LEASES][id] = false
    if r.cancel then
      cancels[id] = false
    end
  else
    indexes[FINISHED][finished_member(state, r.queue, id)] = false
    if state == DEAD then
      index_dead(r, false)
    end
    if r.remove ~= NONE then
      indexes[REMOVALS][id] = false
    end
  end
  if r.expires ~= NONE and r.attempts == 0 and state < RUNNING then
    indexes[EXPIRIES][id] = false
  end
  if state ~= DONE then -- the counter of successes never goes down
    count(r.queue, state, -1)
  end
end

-- Remove a job that is in no index of its state.
local function erase(r)
  saved[r.id] = false
  loaded[r.id] = false
  if r.payload_size > 0 then
    payloads[r.id] = false
  end
  if r.has_result then
    results[r.id] = false
  end
  indexes[IDS][r.id .. r.queue] = false
end

-- Save a job, add it to the indexes of its state, count it, and collect its notifications.
local function add_to_indexes(r)
  local id, state = r.id, r.state
  save(r)
  if state == PENDING_STATE then
    indexes[PENDING][pending_member(r)] = 0
    claimable[r.queue] = true
  elseif state == SCHEDULED then
    indexes[DUE][id] = to_number(r.run)
    due_changed = true
  elseif state == LIMITED then
    indexes[LINES][line_member(r)] = 0
  elseif state == RUNNING then
    indexes[LEASES][id] = to_number(r.lease)
    if r.cancel then
      cancels[id] = true
    end
  else
    ended[#ended + 1] = id
    if r.removed then
      erase(r)
      if state == DONE then
        count(r.queue, state, 1)
      end
      return
    end
    indexes[FINISHED][finished_member(state, r.queue, id)] = 0
    if state == DEAD then
      index_dead(r, 0)
    end
    if r.remove ~= NONE then
      indexes[REMOVALS][id] = to_number(r.remove)
    end
  end
  if r.expires ~= NONE and r.attempts == 0 and state < RUNNING then
    indexes[EXPIRIES][id] = to_number(r.expires)
    due_changed = true
  end
  count(r.queue, state, 1)
end

-- Return the keys without a value, and the others with theirs, in turns.
local function split(map)
  if not next(map) then
    return EMPTY, EMPTY
  end
  local without, with = {}, {}
  for key, value in pairs(map) do
    if value then
      with[#with + 1] = key
      with[#with + 1] = value
    else
      without[#without + 1] = key
    end
  end
  return without, with
end

-- Write the collected changes. With `when_full` they are also written on a full server: the first write removes
-- the slot's last reply, and after a removal the server accepts the others.
local function flush(when_full)
  if when_full then
    redis.call('DEL', REPLY)
  end
  local removed_jobs, records = split(saved)
  local removed_payloads, new_payloads = split(payloads)
  local removed_results, new_results = split(results)
  send('HDEL', JOBS, removed_jobs)
  send('HDEL', PAYLOADS, removed_payloads)
  send('HDEL', RESULTS, removed_results)
  for index = 2, #records, 2 do
    records[index] = records[index].encoded or encode(records[index])
  end
  local added = {}
  for index, members in pairs(indexes) do
    local removed = EMPTY
    for member, score in pairs(members) do
      if score then
        local list = added[index] or {}
        added[index] = list
        list[#list + 1] = score
        list[#list + 1] = member
      else
        removed = removed == EMPTY and {} or removed
        removed[#removed + 1] = member
      end
    end
    send('ZREM', index, removed)
    indexes[index] = nil
  end
  local free, taken = split(holders)
  send('HDEL', DEDUP, free)
  local withdrawn, requested = EMPTY, EMPTY
  if next(cancels) then
    withdrawn, requested = {}, {}
    for id, is_requested in pairs(cancels) do
      local list = is_requested and requested or withdrawn
      list[#list + 1] = id
    end
  end
  send('SREM', CANCEL_REQUESTS, withdrawn)
  send('HSET', JOBS, records)
  send('HSET', PAYLOADS, new_payloads)
  send('HSET', RESULTS, new_results)
  for index, members in pairs(added) do
    send('ZADD', index, members)
  end
  send('HSET', DEDUP, taken)
  send('SADD', CANCEL_REQUESTS, requested)
  local _, put = split(writes)
  send('HSET', KV, put)
  local past_turns, new_turns = split(turns)
  send('HDEL', TURNS, past_turns)
  send('HSET', TURNS, new_turns)
  for queue in pairs(used) do
    redis.call('SADD', QUEUES, queue)
  end
  for queue, states in pairs(counts) do
    for state, difference in pairs(states) do
      if difference ~= 0 then
        local count = redis.pcall('HINCRBY', COUNTS, state .. queue, difference)
        if type(count) == 'table' then -- A damaged counter begins again: an error here would end the script halfway.
          redis.call('HSET', COUNTS, state .. queue, math.max(difference, 0))
        end
      end
    end
  end
  saved, payloads, results, holders, cancels, writes, counts, used, turns = {}, {}, {}, {}, {}, {}, {}, {}, {}
end

-- Publish the collected notifications: at most one message on each channel.
local function publish()
  local names = {}
  for queue in pairs(claimable) do
    names[#names + 1] = queue
  end
  if #names > 0 or due_changed or cancel_requested then
    local heads = (due_changed and 'd' or '') .. (cancel_requested and 'c' or '')
    redis.call('PUBLISH', ARGV[2], heads .. '\0' .. table.concat(names, '\0'))
  end
  if #ended > 0 then
    redis.call('PUBLISH', ARGV[3], table.concat(ended))
  end
end
