-- Move the payloads and results of layout 3, which stored a job as one string, to keys of their own, and add claims to
-- the records: some megabytes per call. Records that were moved before, or can't be read, stay as they are.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the cursor, '' to begin.
-- Returns the next cursor, '' after the last page.
local OLD_FORMAT, OLD_FIXED, OLD_SIZE, PAGE = 1, '>BBBI4I4I4I4c8c8c8c8c8c8c8I2I2I2I4I4I4I4', 97, 250
local LOST_CLAIM = string.rep('\255', 16) -- of a running job; no client has it, so the lease expires
local cursor, bytes = take(), 0

-- Return the first and the last byte of the MessagePack text or binary value at this position.
local function value_at(blob, at)
  local head = string.byte(blob, at)
  if head >= 0xa0 and head <= 0xbf then
    return at + 1, at + head - 0xa0
  end
  local width = ({ [0xc4] = 1, [0xc5] = 2, [0xc6] = 4, [0xd9] = 1, [0xda] = 2, [0xdb] = 4 })[head]
  local size = unpack_from('>I' .. width, blob, at + 1)
  return at + width + 1, at + width + size
end

-- Write the parts of an old record. It ends with an array of the task, the payload and two more values.
local function divide(id, blob)
  local old = { unpack_from(OLD_FIXED, blob) }
  local result_at = OLD_SIZE + 1 + old[15] + old[16] + old[17] + old[18] + old[19]
  local progress_at = result_at + old[20]
  local facts_at = progress_at + old[21]
  local _, task_end = value_at(blob, facts_at + 1)
  local payload_at, payload_end = value_at(blob, task_end + 1)
  local payload_size = payload_end + 1 - payload_at
  old[1], old[20], old[21] = FORMAT, old[21], payload_size
  table.insert(old, 8, old[2] == RUNNING and LOST_CLAIM or NO_CLAIM)
  local record = pack(FIXED, unpack(old, 1, 22)) .. sub(blob, OLD_SIZE + 1, result_at - 1)
    .. sub(blob, progress_at, facts_at - 1) .. '\147' .. sub(blob, facts_at + 1, task_end) .. sub(blob, payload_end + 1)
  if payload_size > 0 then
    redis.call('HSET', PAYLOADS, id, sub(blob, payload_at, payload_end))
  end
  if band(old[3], RESULT_FLAG) > 0 then
    redis.call('HSET', RESULTS, id, sub(blob, result_at, progress_at - 1))
  end
  redis.call('HSET', JOBS, id, record)
end

redis.call('DEL', REPLY) -- a full server accepts writes that follow a removal
local from = cursor == '' and '-' or '(' .. cursor
local members = redis.call('ZRANGEBYLEX', IDS, from, '+', 'LIMIT', 0, PAGE)
for _, member in ipairs(members) do
  local id = sub(member, 1, 16)
  local blob = redis.call('HGET', JOBS, id)
  if blob and string.byte(blob) == OLD_FORMAT then
    pcall(divide, id, blob)
    bytes = bytes + #blob
    if bytes > BATCH_BYTES then
      return member
    end
  end
end
return #members == PAGE and members[PAGE] or ''
