-- Handing out jobs: for claim and for insert_and_claim.
--
-- ARGV: how many requests; for each the limit, the worker or '', the seat or '' (client and name, 16 bytes each),
-- how many queues, and their names and leases. Whoever has a seat asks for one queue.
local MOST_PASSED_OVER = 10000 -- expired jobs that a claim looks past, before promote has taken them away

local function claim_from(queue, lease, worker, limit, answer)
  local from, to = '[' .. queue .. '\0', '(' .. queue .. '\1'
  local passed_over = 0
  while limit > 0 and passed_over < MOST_PASSED_OVER do
    local members = redis.call('ZRANGEBYLEX', PENDING, from, to, 'LIMIT', 0, math.min(limit, CHUNK))
    if #members == 0 then
      break
    end
    local ids = {}
    for index, member in ipairs(members) do
      ids[index] = sub(member, -16)
    end
    fetch(ids)
    for index, member in ipairs(members) do
      local r = load(ids[index])
      if not r or r.state ~= WAITING or pending_member(r) ~= member then
        places[PENDING][member] = false -- what is left of a record that was damaged
        passed_over = passed_over + 1
      elseif is_expired(r) then
        passed_over = passed_over + 1
      else
        claim(r, lease, worker)
        r.encoded = encode(r)
        answer[#answer + 1] = r.id
        answer[#answer + 1] = r.encoded
        limit = limit - 1
      end
    end
    from = '(' .. members[#members]
  end
  return limit
end

-- Wait for a job of the queue, behind those who wait already; what stands for that in SEATS.
local function sit(seat, queue, lease, worker)
  local member = queue .. '\0' .. NOW_TIME .. seat .. to_time(lease) .. worker
  redis.call('ZADD', SEATS, 0, member)
  return member
end

-- For each request a list of ids and records in turns, or the seat that was taken because there was none; and what
-- to keep of it: ids and epochs.
local function claim_all()
  local answers, kept = {}, {}
  for number = 1, take_number() do
    local limit, worker, seat, answer, queue, lease = take_number(), take(), take(), {}, nil, nil
    for _ = 1, take_number() do
      queue, lease = take(), take_number()
      if limit > 0 and redis.call('SISMEMBER', PAUSED, queue) == 0 then
        limit = claim_from(queue, lease, worker, limit, answer)
      end
    end
    answers[number], kept[number] = answer, {}
    for index = 1, #answer, 2 do
      local r = loaded[answer[index]]
      table.insert(kept[number], r.id)
      table.insert(kept[number], r.epoch)
    end
    flush(true) -- so that the next request does not meet them again
    if seat ~= '' and #answer == 0 then
      answers[number] = sit(seat, queue, lease, worker)
    end
  end
  return answers, kept
end

-- The same answer again, for those claims that are still current.
local function claimed_again(kept)
  local answers = {}
  for number, claims in ipairs(kept) do
    local answer = {}
    for index = 1, #claims, 2 do
      local r = load(claims[index])
      if is_current(r, claims[index + 1]) then
        answer[#answer + 1] = r.id
        answer[#answer + 1] = encode(r)
      end
    end
    answers[number] = answer
  end
  return answers
end
