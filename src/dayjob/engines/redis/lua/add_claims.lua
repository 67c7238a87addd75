-- Add the claim to the records of layout 3, and four bytes to their epochs, one page per call. A running job gets a claim
-- that no client has: its lease expires.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the cursor, '0' to begin; the approximate size of a page.
-- Returns the next cursor, '0' after the last page.
local cursor, size = take(), take_number()
local page, changed = redis.call('HSCAN', JOBS, cursor, 'COUNT', size), {}
for index = 1, #page[2], 2 do
  local blob = page[2][index + 1]
  if sub(blob, 1, 1) == '\1' and #blob >= 97 then
    local claim = string.byte(blob, 2) == RUNNING and string.rep('\255', 16) or NO_CLAIM
    changed[#changed + 1] = page[2][index]
    changed[#changed + 1] = '\2' .. sub(blob, 2, 15) .. '\0\0\0\0' .. sub(blob, 16, 19) .. claim .. sub(blob, 20)
  end
end
flush(true)
send('HSET', JOBS, changed)
return page[1]
