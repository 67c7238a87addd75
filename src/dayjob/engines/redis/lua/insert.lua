-- Store jobs with their kv writes, all or none. A job that comes by itself to an empty queue is claimed for who has
-- waited there longest, and sent to it.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the jobs (shared/5_insertion.lua).
-- Answers a string with one part for each job: '\1', or '\0' and the id of the job that is there already.
local kept = answered()
if kept then
  return kept
end
local MOST_GONE = 10 -- seats of processes that have ended which one call removes
local LONGEST = 65536 -- bytes of a job that is sent: messages wait in the server's memory
local CONFIRMED_WITHIN = 3000000 -- microseconds after which a claim is taken back of which nobody said that it came

-- Whether a new job is the next of its queue. One whose claim would free its dedup key takes the usual way: that
-- is a removal, and as the first write it would get past a server that is full.
local function is_next(r)
  local queue = r.queue
  return r.state == WAITING and not is_expired(r) and (r.settled or not r.held) and #r.facts <= LONGEST
    and #redis.call('ZRANGEBYLEX', PENDING, '[' .. queue .. '\0', '(' .. queue .. '\1', 'LIMIT', 0, 1) == 0
    and redis.call('SISMEMBER', PAUSED, queue) == 0
end

-- Who has waited longest on the queue and can be told, if anybody; and the seats to remove.
local function seat_on(queue)
  local from, to, removed = '[' .. queue .. '\0', '(' .. queue .. '\1', {}
  for _, member in ipairs(redis.call('ZRANGEBYLEX', SEATS, from, to, 'LIMIT', 0, MOST_GONE)) do
    local client, name, lease = unpack_from('c16c16c8', member, #queue + 10)
    local channel = SEATS .. ':' .. client
    local listening = redis.pcall('PUBSUB', 'NUMSUB', channel)
    if listening.err then
      return nil, {}
    end
    removed[#removed + 1] = member
    if listening[2] > 0 then
      return { channel = channel, name = name, lease = to_number(lease), worker = sub(member, #queue + 50) }, removed
    end
  end
  return nil, removed
end

local answer, r = insert()
if r then
  local seat, removed = nil, {}
  if #answer == 1 and ARGV[1] == '' and is_next(r) then
    seat, removed = seat_on(r.queue)
  end
  if seat then
    claim(r, seat.lease, seat.worker)
    r.encoded = encode(r)
    places[PENDING][pending_member(r)], places[EXPIRIES][r.id] = nil, nil -- where it never was
    places[HANDED][claim_name(r)] = NOW + CONFIRMED_WITHIN
    woken[r.queue] = nil
  end
  flush(false)
  send('ZREM', SEATS, removed)
  if seat then
    redis.call('PUBLISH', seat.channel, seat.name .. r.id .. r.encoded)
  end
  announce()
  keep_answer(answer)
end
return answer
