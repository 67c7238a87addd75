-- What a call changes is collected here, the last word on each place wins, and is written by `flush`: what
-- frees memory first, because a full server refuses a script whose first write may need more.
local raw = {} -- id -> the stored string, or false
local loaded = {} -- id -> record, or false if there is none
local saved = {} -- id -> record, or false to remove it
local holders = {} -- field of DEDUP -> id, or false
local flags = {} -- id -> whether it belongs to FLAGGED
local writes = {} -- user key -> value
local counts = {} -- queue -> state -> difference
local used = {} -- queues that become known
local places = {} -- sorted set -> member -> score, or false
for _, index in ipairs({ IDS, PENDING, DUE, EXPIRIES, LEASES, REMOVALS, FINISHED, DEATHS, HANDED }) do
  places[index] = {}
end
local woken, ended, is_due, is_cancel = {}, {}, false, false -- whom to tell of what

local function count(queue, state, difference)
  local of_queue = counts[queue]
  if not of_queue then
    of_queue = {}
    counts[queue] = of_queue
  end
  of_queue[state] = (of_queue[state] or 0) + difference
end

-- Read many records at once.
local function fetch(ids)
  for first = 1, #ids, CHUNK do
    local last = math.min(first + CHUNK - 1, #ids)
    local blobs = redis.call('HMGET', JOBS, unpack(ids, first, last))
    for index = first, last do
      raw[ids[index]] = blobs[index - first + 1]
    end
  end
end

local function exists(id)
  if loaded[id] ~= nil then
    return loaded[id] ~= false
  end
  return raw[id] ~= false
end

local function place_death(r, score)
  local of_all, of_queue = death_members(r)
  places[DEATHS][of_all], places[DEATHS][of_queue] = score, score
end

-- A record that can't be read gets a new head from what the sorted sets know of it; the old string becomes
-- its facts, which nobody can decode, so that whoever claims it sets it aside.
local function mend(id, blob)
  local entry = redis.call('ZRANGEBYLEX', IDS, '[' .. id, '+', 'LIMIT', 0, 1)[1]
  if not entry or sub(entry, 1, 16) ~= id then
    return nil
  end
  local r = {
    id = id, state = WAITING, priority = 1000, attempts = 1, max_attempts = 1,
    epoch = math.floor(NOW / 1000000), -- above all that it can have had, so no older claim is current
    enqueued = to_time(0), run = to_time(0), claimed = NONE, lease = NONE, finished = NONE, expires = NONE,
    remove = NONE, cancel = false, held = false, settled = false, queue = sub(entry, 17), dedup = '',
    worker = '', error = 'corrupt record: its head can\'t be read', errors = '', progress = '', facts = blob,
  }
  local lease, due = redis.call('ZSCORE', LEASES, id), redis.call('ZSCORE', DUE, id)
  if lease then
    r.state, r.lease = RUNNING, to_time(tonumber(lease))
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
  if r.state == WAITING then
    places[PENDING][pending_member(r)] = 0
  elseif r.state == DEAD then
    place_death(r, 0)
  end
  places[EXPIRIES][id] = false
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
  r = blob and (decode(id, blob) or mend(id, blob)) or false
  loaded[id] = r
  return r or nil
end

-- The record's content changed, but not its place.
local function save(r)
  r.encoded = nil
  saved[r.id] = r
end

-- Take a job out of the places that go with its state, before it changes.
local function leave(r)
  local id, state = r.id, r.state
  if state == WAITING then
    places[PENDING][pending_member(r)] = false
  elseif state == SCHEDULED then
    places[DUE][id] = false
  elseif state == RUNNING then
    places[LEASES][id] = false
    if r.cancel then
      flags[id] = false
    end
  else
    places[FINISHED][finished_member(state, r.queue, id)] = false
    if state == DEAD then
      place_death(r, false)
    end
    if r.remove ~= NONE then
      places[REMOVALS][id] = false
    end
  end
  if r.expires ~= NONE and r.attempts == 0 and state < RUNNING then
    places[EXPIRIES][id] = false
  end
  if state ~= DONE then -- which counts successes ever, so it never goes down
    count(r.queue, state, -1)
  end
end

-- Forget a job that has left its places.
local function erase(r)
  saved[r.id] = false
  loaded[r.id] = false
  places[IDS][r.id .. r.queue] = false
end

-- Put a job where it now belongs, count it, and note who may want to know.
local function enter(r)
  local id, state = r.id, r.state
  save(r)
  if state == WAITING then
    places[PENDING][pending_member(r)] = 0
    woken[r.queue] = true
  elseif state == SCHEDULED then
    places[DUE][id] = to_number(r.run)
    is_due = true
  elseif state == RUNNING then
    places[LEASES][id] = to_number(r.lease)
    if r.cancel then
      flags[id] = true
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
    places[FINISHED][finished_member(state, r.queue, id)] = 0
    if state == DEAD then
      place_death(r, 0)
    end
    if r.remove ~= NONE then
      places[REMOVALS][id] = to_number(r.remove)
    end
  end
  if r.expires ~= NONE and r.attempts == 0 and state < RUNNING then
    places[EXPIRIES][id] = to_number(r.expires)
    is_due = true
  end
  count(r.queue, state, 1)
end

local function split(map)
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

-- Write what was collected. `shrinks` says that the call must get through on a full server: dropping the
-- lane's last answer is then the first write, after which the server lets the others pass.
local function flush(shrinks)
  if shrinks then
    redis.call('DEL', ANSWER)
  end
  local gone, kept = split(saved)
  send('HDEL', JOBS, gone)
  for index = 2, #kept, 2 do
    kept[index] = kept[index].encoded or encode(kept[index])
  end
  local added = {}
  for index, members in pairs(places) do
    if next(members) then
      local removed = {}
      added[index] = {}
      for member, score in pairs(members) do
        if score then
          local list = added[index]
          list[#list + 1] = score
          list[#list + 1] = member
        else
          removed[#removed + 1] = member
        end
      end
      send('ZREM', index, removed)
      places[index] = {}
    end
  end
  local free, taken = split(holders)
  send('HDEL', DEDUP, free)
  local unflagged, flagged = {}, {}
  for id, is_flagged in pairs(flags) do
    local list = is_flagged and flagged or unflagged
    list[#list + 1] = id
  end
  send('SREM', FLAGGED, unflagged)
  send('HSET', JOBS, kept)
  for index, members in pairs(added) do
    send('ZADD', index, members)
  end
  send('HSET', DEDUP, taken)
  send('SADD', FLAGGED, flagged)
  local _, put = split(writes)
  send('HSET', KV, put)
  for queue in pairs(used) do
    redis.call('SADD', QUEUES, queue)
  end
  for queue, states in pairs(counts) do
    for state, difference in pairs(states) do
      if difference ~= 0 then
        redis.call('HINCRBY', COUNTS, state .. queue, difference)
      end
    end
  end
  saved, holders, flags, writes, counts, used = {}, {}, {}, {}, {}, {}
end

-- Tell whoever listens, in any process: one message on each channel at most.
local function announce()
  local names = {}
  for queue in pairs(woken) do
    names[#names + 1] = queue
  end
  if #names > 0 or is_due or is_cancel then
    local heads = (is_due and 'd' or '') .. (is_cancel and 'c' or '')
    redis.call('PUBLISH', ARGV[2], heads .. '\0' .. table.concat(names, '\0'))
  end
  if #ended > 0 then
    redis.call('PUBLISH', ARGV[3], table.concat(ended))
  end
end
