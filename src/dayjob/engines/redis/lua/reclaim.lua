-- End claims of workers that are gone: another run, or dead. Examines one page of the running jobs.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the cursor, '0' to begin; the approximate size of a page;
-- the number of values that earlier steps reported, and these; the limit for all steps; the number of workers, and
-- their names; the retention times.
-- Returns a list of three: this step, or the later one whose stored reply it returns; the next cursor, '0' after
-- the last page; the jobs of the claims ended by all steps so far, see report.
local cursor, size, ended, workers = take(), take_number(), {}, {}
for index = 1, take_number() do
  ended[index] = take()
end
local before, limit = #ended, take_number()
for _ = 1, take_number() do
  workers[take()] = true
end
local retention = take_retention()

-- Return the worker of a running job without decoding the rest: most jobs belong to other workers.
local function worker_of(blob)
  if not blob or #blob < FIXED_SIZE then
    return ''
  end
  local queue_size, dedup_size, worker_size = unpack_from('>I2I2I2', blob, SIZES_AT)
  local first = FIXED_SIZE + 1 + queue_size + dedup_size
  return sub(blob, first, first + worker_size - 1)
end

local page = redis.call('ZSCAN', LEASES, cursor, 'COUNT', size)
local ids = {}
for index = 1, #page[2], 2 do
  ids[#ids + 1] = page[2][index]
end
fetch(ids)
local lost = before / REPORTED
for _, id in ipairs(ids) do
  local worker = lost < limit and worker_of(raw[id]) or ''
  local r = worker ~= '' and workers[worker] and load(id)
  if r and r.state == RUNNING then
    expire_claim(r, retention(r.queue), WORKER_GONE_TEXT, ended)
    lost = lost + 1
  end
end
return commit({ STEP, page[1], ended })
