-- The start of insert.lua, before any function is defined: store a single job that is pending at once and has a small
-- payload, no dedup key, no expiry, no kv writes and no reserved id, on a queue without waiting claims. In any other case it
-- changes nothing, and the rest of the script runs.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the jobs (shared/6_insert.lua).
-- Returns '\1' if the job was stored.
do
  local id, queue, numbers = ARGV[8], ARGV[9], ARGV[10]
  if #id == 16 and ARGV[11] == '' and ARGV[13] == '' and string.byte(numbers) == 1
    and string.sub(numbers, 10) == '\0\0\0\0\0\0\0\0\0\0\0\0' .. NONE
    and redis.call('HEXISTS', JOBS, id) == 0
    and (ARGV[1] ~= ''
      or #redis.call('ZRANGEBYLEX', WAITING_CLAIMS, '[' .. queue .. '\0', '(' .. queue .. '\1', 'LIMIT', 0, 1) == 0) then
    local stored, number = redis.call('GET', REPLY), tonumber(ARGV[4])
    if not stored or struct.unpack('>I8', stored) < number then
      local now = ARGV[1]
      if now == '' then
        local time = redis.call('TIME')
        now = time[1] * 1000000 + time[2]
      end
      local _, priority, max_attempts = struct.unpack(INSERTION, numbers)
      now = struct.pack('>i8', now)
      redis.call('HSET', JOBS, id, struct.pack(FIXED, FORMAT, PENDING_STATE, 0, priority, 0, max_attempts, 0,
        '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0', now, now, NONE, NONE, NONE, NONE, NONE, #queue, 0, 0, 0, 0, 0, 0)
        .. queue .. ARGV[12])
      redis.call('ZADD', IDS, 0, id .. queue)
      redis.call('ZADD', PENDING, 0, queue .. '\0' .. string.sub(numbers, 2, 5) .. id)
      local count = redis.pcall('HINCRBY', COUNTS, PENDING_STATE .. queue, 1)
      if type(count) == 'table' then -- A damaged counter begins again.
        count = redis.call('HSET', COUNTS, PENDING_STATE .. queue, 1) + 1
      end
      if count == 1 then
        redis.call('SADD', QUEUES, queue)
      end
      redis.call('PUBLISH', ARGV[2], '\0' .. queue)
      redis.call('SET', REPLY, struct.pack('>I8I4', number, tonumber(ARGV[5])) .. cmsgpack.pack('\1'), 'PX', ARGV[7])
      return '\1'
    end
  end
end
