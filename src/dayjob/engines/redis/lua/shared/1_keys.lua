-- Every script gets the same KEYS, all in one hash slot; keys.py documents each of them.
-- ARGV begins in every script with: the time in microseconds or '' for the server's own, the channels for
-- changes and for ends, the number and step of the write, the key of its token, under which it claims jobs, and the
-- milliseconds for which its reply is kept. The arguments of the verb follow.
-- Constants shared with Python (states, transitions, limits, texts) precede this file; see scripts.py.
local JOBS, IDS, PENDING, DUE, EXPIRIES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local LEASES, REMOVALS, FINISHED, CANCEL_REQUESTS, DEDUP = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local KV, COUNTS, QUEUES, PAUSED, DOCUMENTS = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local DEAD_INDEX, WAITING_CLAIMS, HANDOFFS, PAYLOADS = KEYS[16], KEYS[17], KEYS[18], KEYS[19]
local RESULTS, HANDOFF_CLIENTS, RESERVED_IDS, LINES = KEYS[20], KEYS[21], KEYS[22], KEYS[23]
local BUCKETS, BUCKET_DUES, IDLE_BUCKETS, TURNS = KEYS[24], KEYS[25], KEYS[26], KEYS[27]
local TENANTS, REPLY = KEYS[28], KEYS[29]

local CHUNK = 1000 -- the most values in one command; `unpack` fails near 8,000
local ACKNOWLEDGED_WITHIN = 2000000 -- microseconds until an unacknowledged hand-off is revoked

local sub, pack, unpack_from = string.sub, struct.pack, struct.unpack

local NOW = tonumber(ARGV[1])
if not NOW then
  local time = redis.call('TIME')
  NOW = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local NUMBER, STEP, TOKEN = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local position = 7

-- Return the next argument.
local function take()
  position = position + 1
  return ARGV[position]
end

local function take_number()
  return tonumber(take())
end

-- Run a command on one key with any number of values.
local function send(command, key, values)
  for first = 1, #values, CHUNK do
    redis.call(command, key, unpack(values, first, math.min(first + CHUNK - 1, #values)))
  end
end

-- Return the stored reply if this step of the write, or a later one, was applied before; else nil. A write that
-- arrives after its successor in the same slot has no caller left: it fails, and changes nothing. Every write begins
-- with this check; scripts.py adds it.
local function stored_reply()
  local stored = redis.call('GET', REPLY)
  if not stored then
    return nil
  end
  local number, step = unpack_from('>I8I4', stored)
  if number > NUMBER then
    return redis.error_reply('STALE a later write of this slot was applied')
  end
  return number == NUMBER and step >= STEP and cmsgpack.unpack(sub(stored, 13)) or nil
end

-- Store the reply in the same commit as the write, and return it. Every write does so, also one that changes nothing:
-- the number refuses its earlier tries, and the writes before it, that arrive late.
local function store_reply(reply)
  redis.call('SET', REPLY, pack('>I8I4', NUMBER, STEP) .. cmsgpack.pack(reply), 'PX', ARGV[7])
  return reply
end
