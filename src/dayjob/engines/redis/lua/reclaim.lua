-- End claims of workers that are gone: another run, or dead. Looks at a part of the running jobs.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the cursor, '0' to begin; about how many jobs to look at; how
-- many claims to end at most; how many workers, and their names; how long jobs are kept.
-- Answers a list of two: the next cursor, '0' after the last part; how many claims it ended.
local kept = answered()
if kept then
  return kept
end
local cursor, size, limit, gone = take(), take_number(), take_number(), {}
for _ = 1, take_number() do
  gone[take()] = true
end
local keeps = take_keeps()

-- Whose claim it is, without decoding the rest: most belong to others.
local function worker_of(blob)
  if not blob or #blob < FIXED_SIZE then
    return ''
  end
  local queue_size, dedup_size, worker_size = unpack_from('>I2I2I2', blob, 76)
  local first = FIXED_SIZE + 1 + queue_size + dedup_size
  return sub(blob, first, first + worker_size - 1)
end

local page = redis.call('ZSCAN', LEASES, cursor, 'COUNT', size)
local ids = {}
for index = 1, #page[2], 2 do
  ids[#ids + 1] = page[2][index]
end
fetch(ids)
local lost = 0
for _, id in ipairs(ids) do
  local worker = lost < limit and worker_of(raw[id]) or ''
  local r = worker ~= '' and gone[worker] and load(id)
  if r and r.state == RUNNING then
    lapse(r, keeps(r.queue), 'worker gone')
    lost = lost + 1
  end
end
local answer = { page[1], lost }
if lost > 0 then
  flush(true)
  announce()
  keep_answer(answer)
end
return answer
