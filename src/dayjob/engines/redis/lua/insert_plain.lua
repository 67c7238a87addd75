-- The start of insert.lua, before any other function is defined: store a single job that is pending at once and has a
-- small payload, no dedup key, no expiry, no kv writes and no reserved id; or hand it off. In any other case it changes
-- nothing, and the rest of the script runs.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the jobs (shared/6_insert.lua).
-- Returns '\1' if the job was stored.
local MOST_EXAMINED = 10 -- waiting claims that one call examines
local PROMPT = 100000 -- microseconds after which a client without an acknowledgment gets no further hand-off

-- Return the claim that has waited longest on the queue and whose client is responsive, if the queue is empty and not
-- paused; and the members of WAITING_CLAIMS to remove. A responsive client is subscribed, and was prompt with its last
-- acknowledgment: a frozen process is subscribed, too. If the server refuses PUBSUB, no claim is returned.
local function longest_waiting(queue, now)
  local from, to, removed = '[' .. queue .. '\0', '(' .. queue .. '\1', {}
  local members = redis.call('ZRANGEBYLEX', WAITING_CLAIMS, from, to, 'LIMIT', 0, MOST_EXAMINED)
  if #members == 0 or #redis.call('ZRANGEBYLEX', PENDING, from, to, 'LIMIT', 0, 1) > 0
    or redis.call('SISMEMBER', PAUSED, queue) == 1 then
    return nil, removed
  end
  for index, member in ipairs(members) do
    local client, name, lease = struct.unpack('>c16c16i8', member, #queue + 10)
    local subscribers = redis.pcall('PUBSUB', 'NUMSUB', HANDOFFS .. ':' .. client)
    if subscribers.err then
      return nil, {}
    end
    removed[index] = member
    local unacknowledged = redis.call('ZSCORE', HANDOFF_CLIENTS, client)
    if subscribers[2] > 0 and (not unacknowledged or now - unacknowledged <= PROMPT) then
      local worker = string.sub(member, #queue + 50)
      return { member = member, client = client, name = name, lease = lease, worker = worker }, removed
    end
  end
  return nil, removed
end

-- Register and send a hand-off, after the job is stored: to the list of the client, which blocks on it. The record is ''
-- if the payload is stored apart. A message that is not read expires with the deadline of its acknowledgment.
local function hand_off(waiting, id, record, now)
  local list = HANDOFFS .. ':' .. waiting.client
  redis.call('ZADD', HANDOFFS, now + ACKNOWLEDGED_WITHIN, id .. waiting.name)
  redis.call('ZADD', HANDOFF_CLIENTS, 'NX', now, waiting.client)
  redis.call('RPUSH', list, struct.pack('>I2', #waiting.member) .. waiting.member .. id .. record)
  redis.call('PEXPIRE', list, ACKNOWLEDGED_WITHIN / 1000)
end

do
  local id, queue, numbers = ARGV[8], ARGV[9], ARGV[10]
  if #id == 16 and ARGV[11] == '' and ARGV[13] == '' and string.byte(numbers) == 1
    and string.sub(numbers, 10) == '\0\0\0\0\0\0\0\0\0\0\0\0\128\0\0\0\0\0\0\0' then
    local stored, number = redis.call('GET', REPLY), tonumber(ARGV[4])
    if not stored or struct.unpack('>I8', stored) < number then
      local now, waiting, removed = ARGV[1], nil, nil
      if now == '' then
        local time = redis.call('TIME')
        now = time[1] * 1000000 + time[2]
        waiting, removed = longest_waiting(queue, now)
      end
      local time, state, claimed, worker = struct.pack('>i8', now), PENDING_STATE, NONE .. NONE, ''
      local attempts, epoch, claim = '\0\0\0\0', '\0\0\0\0\0\0\0\0', '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
      if waiting then
        state, claimed, worker = RUNNING, time .. struct.pack('>i8', now + waiting.lease), waiting.worker
        attempts, epoch, claim = '\0\0\0\1', time, waiting.name
      end
      -- The record as FIXED of shared/2_records.lua. The epoch is the time, as in `claim` of shared/5_rules.lua.
      local record = string.char(FORMAT, state, 0) .. string.sub(numbers, 2, 5) .. attempts .. string.sub(numbers, 6, 9)
        .. epoch .. claim .. time .. time .. claimed
        .. '\128\0\0\0\0\0\0\0\128\0\0\0\0\0\0\0\128\0\0\0\0\0\0\0' .. struct.pack('>I2I2I2', #queue, 0, #worker)
        .. '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' .. queue .. worker .. ARGV[12]
      if redis.pcall('HSETNX', JOBS, id, record) == 1 then
        redis.call('ZADD', IDS, 0, id .. queue)
        if waiting then
          redis.call('ZADD', LEASES, now + waiting.lease, id)
        else
          redis.call('ZADD', PENDING, 0, queue .. '\0' .. string.sub(numbers, 2, 5) .. id)
        end
        local count = redis.pcall('HINCRBY', COUNTS, state .. queue, 1)
        if type(count) == 'table' then -- A damaged counter begins again.
          count = redis.call('HSET', COUNTS, state .. queue, 1) + 1
        end
        if count == 1 then
          redis.call('SADD', QUEUES, queue)
        end
        if removed and #removed > 0 then
          redis.call('ZREM', WAITING_CLAIMS, unpack(removed))
        end
        if waiting then
          hand_off(waiting, id, record, now)
        else
          redis.call('PUBLISH', ARGV[2], '\0' .. queue)
        end
        redis.call('SET', REPLY, struct.pack('>I8I4', number, tonumber(ARGV[5])) .. '\161\1', 'PX', ARGV[7])
        return '\1'
      end
    end
  end
end
