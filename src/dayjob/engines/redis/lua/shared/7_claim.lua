-- Claiming pending jobs: for claim and insert_and_claim.
--
-- ARGV: the number of requests; for each the limit, the worker or '', the waiting claim or '' (client and name, 16
-- bytes each), the number of queues, and their names and leases. A request with a waiting claim has one queue.
local MOST_SKIPPED = 10000 -- expired or stale entries that one claim skips; promote removes expired jobs
local MOST_TENANTS = 100 -- entries of TENANTS that one claim from a queue examines
local BLOCKED_WIDTH = 100 -- pending jobs that are read at once after one without room
local MOST_HANDOFFS = 100 -- unacknowledged hand-offs, the earliest, among which a claim looks for its own

local bytes = 0 -- the size of the jobs claimed by this call

-- Add a claimed job to a reply: its id, its record, and its payload if that is stored apart. A payload that is missing
-- is empty; the record has its size.
local function add_claimed(reply, r)
  local last = #reply
  r.encoded = encode(r)
  reply[last + 1], reply[last + 2] = r.id, r.encoded
  reply[last + 3] = r.payload_size > 0 and redis.call('HGET', PAYLOADS, r.id) or ''
end

-- Set the turn of a fair queue to that of a claimed job, if it is later. Remove tenants whose next free turn it has
-- passed, and move the entries of others to theirs.
local function pass_turn(queue, turn)
  if turn <= (turn_of(queue) or 1) then
    return
  end
  turns[queue] = turn
  local from, to = '[' .. queue .. '\0', '(' .. queue .. '\0' .. pack('>I8', turn + 1)
  for _, member in ipairs(redis.call('ZRANGEBYLEX', TENANTS, from, to, 'LIMIT', 0, MOST_TENANTS)) do
    local tenant = sub(member, #queue + 10)
    local free = turn_of(queue .. '\0' .. tenant) or 1
    indexes[TENANTS][member] = false
    if free > turn then
      indexes[TENANTS][queue .. '\0' .. pack('>I8', free) .. tenant] = 0
    else
      turns[queue .. '\0' .. tenant] = false
    end
  end
end

-- Claim up to the limit, and up to BATCH_BYTES; but at least one job for each request, since a request without
-- jobs waits for the next one. Return the rest of the limit.
local function claim_from(queue, lease, worker, limit, reply)
  local from, to = '[' .. queue .. '\0', '(' .. queue .. '\1'
  local skipped, blocked, turn = 0, 0, 0
  while limit > 0 and skipped < MOST_SKIPPED and blocked < MOST_BLOCKED do
    local width = blocked > 0 and BLOCKED_WIDTH or 0
    local members = redis.call('ZRANGEBYLEX', PENDING, from, to, 'LIMIT', 0, math.min(math.max(limit, width), CHUNK))
    if #members == 0 then
      break
    end
    local ids = fetch_members(members)
    for index, member in ipairs(members) do
      local r = load(ids[index])
      if not r or r.state ~= PENDING_STATE or pending_member(r) ~= member then
        indexes[PENDING][member] = false -- left by a damaged record
        skipped = skipped + 1
      elseif is_expired(r) then
        skipped = skipped + 1
      else
        local size = #r.facts + r.payload_size
        if bytes + size > BATCH_BYTES and #reply > 0 then
          limit = 0
        end
        if limit == 0 or blocked == MOST_BLOCKED then
          break
        elseif r.limits and r.limits ~= '' and not use_limits().admit(r) then
          blocked = blocked + 1
        else
          bytes = bytes + size
          claim(r, lease, worker, TOKEN)
          add_claimed(reply, r)
          limit = limit - 1
          turn = math.max(turn, r.turn or 0)
        end
      end
    end
    from = '(' .. members[#members]
  end
  if turn > 0 then
    pass_turn(queue, turn)
  end
  if blocked >= MOST_BLOCKED then
    claimable[queue] = true
  end
  return limit
end

-- Add a waiting claim to the end of the queue's line, and return its member of WAITING_CLAIMS. The client is alive, so
-- it gets hand-offs again.
local function wait_for(queue, waiting, lease, worker)
  local member = queue .. '\0' .. NOW_TIME .. waiting .. to_time(lease) .. worker
  redis.call('ZADD', WAITING_CLAIMS, 0, member)
  redis.call('ZREM', HANDOFF_CLIENTS, sub(waiting, 1, 16))
  return member
end

-- Make the job pending that was handed off to a waiting claim, if it is not acknowledged. Otherwise later jobs would be
-- claimed before it. Return whether there was one. The member is that of WAITING_CLAIMS, which the hand-off removed.
local function withdraw_handoff(member)
  local first = string.find(member, '\0', 1, true) + 25
  local name = sub(member, first, first + 15)
  for _, handoff in ipairs(redis.call('ZRANGEBYSCORE', HANDOFFS, '-inf', '+inf', 'LIMIT', 0, MOST_HANDOFFS)) do
    if sub(handoff, 17) == name then
      local r = load(sub(handoff, 1, 16))
      if is_current(r, name) then
        revoke_handoff(r)
        return true
      end
    end
  end
  return false
end

-- Return for each request a list of ids, records and payloads in turns, or, if there is none, the member of its waiting
-- claim; and the ids of each, or that member, to store for a repetition.
local function claim_all()
  local replies, stored = {}, {}
  for number = 1, take_number() do
    local limit, worker, waiting, reply, queue, lease = take_number(), take(), take(), {}, nil, nil
    for _ = 1, take_number() do
      queue, lease = take(), take_number()
      if limit > 0 and redis.call('SISMEMBER', PAUSED, queue) == 0 then
        limit = claim_from(queue, lease, worker, limit, reply)
      end
    end
    replies[number], stored[number] = reply, {}
    for index = 1, #reply, 3 do
      table.insert(stored[number], reply[index])
    end
    flush(true) -- so that the next request does not find the same jobs
    if waiting ~= '' and #reply == 0 then
      replies[number] = wait_for(queue, waiting, lease, worker)
      stored[number] = replies[number]
    end
  end
  if limiter then
    limiter.finish(BATCH)
  end
  return replies, stored
end

-- Return the reply again, with the claims that are still current.
local function claimed_again(stored)
  local replies = {}
  for number, of_request in ipairs(stored) do
    if type(of_request) == 'string' then
      replies[number] = of_request
    else
      replies[number] = {}
      for _, id in ipairs(of_request) do
        local r = load(id)
        if is_current(r, TOKEN) then
          add_claimed(replies[number], r)
        end
      end
    end
  end
  return replies
end
