-- Store jobs with their kv writes, all or none. A single job that comes to an empty queue is claimed for the claim that
-- has waited there longest, and handed off to it.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the jobs (shared/6_insert.lua).
-- Returns a string with one part for each job: '\1', or '\0' and the id of the existing job; or see full_queue.
local MOST_EXAMINED = 10 -- waiting claims that one call examines
local LARGEST = 65536 -- bytes of a job that is handed off
local PROMPT = 100000 -- microseconds after which a client without an acknowledgment gets no further hand-off

-- Return whether a new job is the next of its queue. A job with limits or a turn is left to a claim. A job whose claim would release its dedup key is not handed off:
-- the release is a removal, and as the first write it would make a full server accept the rest.
local function is_next(r)
  local queue = r.queue
  return r.state == PENDING_STATE and not r.limits and not is_expired(r) and (r.settled or not r.held)
    and #r.facts + r.payload_size <= LARGEST
    and #redis.call('ZRANGEBYLEX', PENDING, '[' .. queue .. '\0', '(' .. queue .. '\1', 'LIMIT', 0, 1) == 0
    and redis.call('SISMEMBER', PAUSED, queue) == 0
end

-- Return whether the client is subscribed, and was prompt with its last acknowledgment: a frozen process is subscribed.
-- Return nil if the server does not allow the question.
local function is_responsive(client)
  local subscribers = redis.pcall('PUBSUB', 'NUMSUB', HANDOFFS .. ':' .. client)
  if subscribers.err then
    return nil
  end
  local unacknowledged = redis.call('ZSCORE', HANDOFF_CLIENTS, client)
  return subscribers[2] > 0 and (not unacknowledged or NOW - unacknowledged <= PROMPT)
end

-- Return the claim that has waited longest on the queue and whose client is responsive, if any; and the members of
-- WAITING_CLAIMS to remove.
local function longest_waiting(queue)
  local from, to, removed = '[' .. queue .. '\0', '(' .. queue .. '\1', {}
  for _, member in ipairs(redis.call('ZRANGEBYLEX', WAITING_CLAIMS, from, to, 'LIMIT', 0, MOST_EXAMINED)) do
    local client, name, lease = unpack_from('c16c16c8', member, #queue + 10)
    local responsive = is_responsive(client)
    if responsive == nil then
      return nil, {}
    end
    removed[#removed + 1] = member
    if responsive then
      return { client = client, name = name, lease = to_number(lease), worker = sub(member, #queue + 50) }, removed
    end
  end
  return nil, removed
end

local reply, r = insert()
local full = full_queue()
if full then
  return store_reply(full)
end
local waiting, removed = nil, {}
if r and #reply == 1 and ARGV[1] == '' and is_next(r) then
  waiting, removed = longest_waiting(r.queue)
end
if waiting then
  claim(r, waiting.lease, waiting.worker)
  r.encoded = encode(r)
  indexes[PENDING][pending_member(r)], indexes[EXPIRIES][r.id] = nil, nil -- they were never written
  indexes[HANDOFFS][handoff_member(r)] = NOW + ACKNOWLEDGED_WITHIN
  claimable[r.queue] = nil
end
apply_insert(not r)
send('ZREM', WAITING_CLAIMS, removed)
if waiting then
  redis.call('ZADD', HANDOFF_CLIENTS, 'NX', NOW, waiting.client)
  redis.call('PUBLISH', HANDOFFS .. ':' .. waiting.client, waiting.name .. handoff_member(r))
end
publish()
return store_reply(reply)
