-- Every script gets the same KEYS, all in one hash slot; keys.py says what each of them holds.
-- ARGV begins in every script with: the time in microseconds or '' for the server's own, the channels for
-- news and for ends, and the token of the call. The arguments of the verb follow.
local JOBS, IDS, PENDING, DUE, EXPIRIES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local LEASES, REMOVALS, FINISHED, FLAGGED, DEDUP = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local KV, COUNTS, QUEUES, PAUSED, NOTES = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local DEATHS, SEATS, HANDED, ANSWER = KEYS[16], KEYS[17], KEYS[18], KEYS[19]

local SCHEDULED, WAITING, RUNNING, DONE, DEAD, CANCELLED = 1, 2, 3, 4, 5, 6

local CHUNK = 1000 -- values passed to one command at most; `unpack` fails near 8,000

local sub, pack, unpack_from = string.sub, struct.pack, struct.unpack

local NOW = tonumber(ARGV[1])
if not NOW then
  local time = redis.call('TIME')
  NOW = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local TOKEN = tonumber(ARGV[4])
local position = 4

-- The next argument.
local function take()
  position = position + 1
  return ARGV[position]
end

local function take_number()
  return tonumber(take())
end

-- 16-byte ids out of one argument.
local function take_ids()
  local joined = take()
  local ids = {}
  for first = 1, #joined, 16 do
    ids[#ids + 1] = sub(joined, first, first + 15)
  end
  return ids
end

-- A command on one key with any number of values.
local function send(command, key, values)
  for first = 1, #values, CHUNK do
    redis.call(command, key, unpack(values, first, math.min(first + CHUNK - 1, #values)))
  end
end

-- What this call answered before, if this is not the first time that it arrives; nil if it is. A call that
-- arrives after its successor on the same lane has nobody left who waits for it, and must change nothing.
local function answered()
  local kept = redis.call('GET', ANSWER)
  if not kept then
    return nil
  end
  local token = unpack_from('>I8', kept)
  if token > TOKEN then
    return redis.error_reply('STALE a later call on this lane was answered')
  end
  return token == TOKEN and cmsgpack.unpack(sub(kept, 9)) or nil
end

-- Keep the answer, in the same commit as what it tells of, for whoever has to ask again.
local function keep_answer(answer)
  redis.call('SET', ANSWER, pack('>I8', TOKEN) .. cmsgpack.pack(answer), 'PX', 600000)
end
