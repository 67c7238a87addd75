-- Limits: the rules of engines/limits.py and docs/design/0025-flow-control.md, which has the reasons.
local BUCKET = '>I8I8I8' -- running units, arrival time, due time or 0
local LINE_PAGE = 100 -- jobs of a line that are read at once

local left = {} -- state, limits and line of the jobs that have left a state
local limiter = nil -- the functions of `use_limits`

-- Collect the limits that a job leaves with its state, after `remove_from_indexes`.
local function leave(r)
  if r.limits and r.limits ~= '' then
    left[#left + 1] = { state = r.state, limits = limits_of(r.limits), line = r.line }
    r.line = 0
  end
end

-- Return the functions that need limits. They are defined by the first job with limits, so that others don't pay for them.
local function use_limits()
  if limiter then
    return limiter
  end
  local buckets = {} -- name -> bucket, read by this call and saved by `finish`
  local settings = {} -- name -> settings, or false
  local freed = {} -- name -> the units by which jobs have left the bucket or its lines
  local joined = {} -- lines that this call has added to
  local empty = {} -- line -> whether it had no job
  local has_lines = redis.call('ZCARD', LINES) > 0
  local min, max = math.min, math.max

  local function stored_settings(name)
    local prefix = LIMITS_KIND .. '\0' .. name
    local from, to = '[' .. prefix .. '\0', '(' .. prefix .. '\1'
    local member = redis.call('ZRANGEBYLEX', DOCUMENTS, from, to, 'LIMIT', 0, 1)[1]
    if not member then
      return false
    end
    local ok, found = pcall(cjson.decode, sub(member, #prefix + 10))
    found = ok and type(found) == 'table' and found or EMPTY
    return {
      running = tonumber(found.running), rate = tonumber(found.rate), per = tonumber(found.per) or 1000000,
      burst = tonumber(found.burst) or 1,
    }
  end

  -- Return the settings of a bucket: those of its whole name, else those of its limit, else false.
  local function settings_of(name)
    local found = settings[name]
    if found == nil then
      found = stored_settings(name)
      local colon = string.find(name, ':', 1, true)
      if not found and colon then
        found = settings_of(sub(name, 1, colon - 1))
      end
      settings[name] = found
    end
    return found
  end

  local function bucket_of(name)
    local bucket = buckets[name]
    if not bucket then
      local stored = redis.call('HGET', BUCKETS, name) or ''
      bucket = { running = 0, tat = 0, due = 0, stored = stored }
      if #stored == 24 then
        bucket.running, bucket.tat, bucket.due = unpack_from(BUCKET, stored)
      end
      bucket.was_idle = stored ~= '' and bucket.running == 0 and bucket.due == 0
      buckets[name] = bucket
    end
    return bucket
  end

  -- Return the microseconds in which the rate admits the units, rounded up. The division is exact below 2^53.
  local function cost(of, units)
    local whole = math.floor(of.per / of.rate)
    return units * whole + math.ceil(units * (of.per - whole * of.rate) / of.rate)
  end

  local function due_time(of, tat, units)
    return tat - max(cost(of, of.burst) - cost(of, units), 0)
  end

  local function has_place(bucket, of, units)
    return not of.running or bucket.running == 0 or bucket.running + units <= of.running
  end

  local function fits(bucket, of, units)
    return not of or has_place(bucket, of, units) and (not of.rate or due_time(of, bucket.tat, units) <= NOW)
  end

  local function take_room(bucket, of, units)
    bucket.running = bucket.running + units
    if of and of.rate then
      bucket.tat = max(bucket.tat, NOW) + cost(of, units)
    end
  end

  local function free(name, units)
    bucket_of(name)
    freed[name] = (freed[name] or 0) + units
  end

  -- Return the job of an entry of LINES, or nil after removing an entry that a damaged record left.
  local function in_line(member)
    local r = load(sub(member, -16))
    if r and r.state == LIMITED and line_member(r) == member then
      return r
    end
    indexes[LINES][member] = false
    return nil
  end

  -- Return whether the line has a job that precedes this one. The pending jobs of a queue come in order, so the jobs that
  -- a claim has moved to a line precede the next one.
  local function is_behind(r, line)
    if joined[line] or empty[line] then
      return joined[line]
    end
    local from, to = '[' .. line .. '\0', '(' .. line .. '\0' .. place(r)
    if empty[line] == nil then
      empty[line] = not has_lines or #redis.call('ZRANGEBYLEX', LINES, from, '(' .. line .. '\1', 'LIMIT', 0, 1) == 0
      return is_behind(r, line)
    end
    while true do
      local member = redis.call('ZRANGEBYLEX', LINES, from, to, 'LIMIT', 0, 1)[1]
      if not member or in_line(member) then
        return member ~= nil
      end
      from = '(' .. member
    end
  end

  local function change_state(r, state, line)
    remove_from_indexes(r)
    r.state, r.line = state, line
    add_to_indexes(r)
  end

  -- Take room for a pending job in all its buckets, and return true. Else move it to the line of the first without.
  local function admit(r)
    local limits = limits_of(r.limits)
    for number, limit in ipairs(limits) do
      local name, line = limit[1], limit[1] .. '\0' .. r.queue
      if not fits(bucket_of(name), settings_of(name), limit[2]) or is_behind(r, line) then
        change_state(r, LIMITED, number)
        joined[line], has_lines = true, true
        for other, left_limit in ipairs(limits) do
          if other ~= number then
            free(left_limit[1], left_limit[2])
          end
        end
        return false
      end
    end
    for _, limit in ipairs(limits) do
      take_room(bucket_of(limit[1]), settings_of(limit[1]), limit[2])
    end
    return true
  end

  -- Return the number of the first limit with a line that a new job has to join, or 0.
  local function line_of(r)
    for number, limit in ipairs(limits_of(r.limits)) do
      if is_behind(r, limit[1] .. '\0' .. r.queue) then
        return number
      end
    end
    return 0
  end

  -- Correct the rates of buckets by these units, less than 0 to give units back.
  local function charge(charges)
    for _, one in ipairs(limits_of(charges)) do
      local name, units = one[1], one[2]
      local of = settings_of(name)
      if of and of.rate then
        local bucket = bucket_of(name)
        if units > 0 then
          bucket.tat = max(bucket.tat, NOW) + cost(of, units)
        else
          bucket.tat = max(bucket.tat - cost(of, -units), 0)
          free(name, -units)
        end
      end
    end
  end

  local function leave_buckets()
    for _, one in ipairs(left) do
      local line = one.limits[one.line]
      if one.state == LIMITED and line then
        free(line[1], line[2])
      elseif one.state == PENDING_STATE or one.state == RUNNING then
        for _, limit in ipairs(one.limits) do
          free(limit[1], limit[2])
          if one.state == RUNNING then
            local bucket = bucket_of(limit[1])
            bucket.running = max(bucket.running - limit[2], 0)
          end
        end
      end
    end
    left = {}
  end

  local function queues_of(name)
    local queues, from, to = {}, '[' .. name .. '\0', '(' .. name .. '\1'
    while true do
      local member = redis.call('ZRANGEBYLEX', LINES, from, to, 'LIMIT', 0, 1)[1]
      if not member then
        return queues
      end
      local queue = sub(member, #name + 2, (string.find(member, '\0', #name + 2, true) or 0) - 1)
      queues[#queues + 1] = queue
      from = '[' .. name .. '\0' .. queue .. '\1'
    end
  end

  local function units_in(r, name)
    for _, limit in ipairs(limits_of(r.limits)) do
      if limit[1] == name then
        return limit[2]
      end
    end
    return 1
  end

  -- Make the first jobs of a line pending: those that fit together, until they take that many units, and `most` at most.
  -- Return their number; the job that is then first, if the bucket has a rate; and whether `most` were too few.
  local function wake_line(name, queue, units, most)
    local bucket, of, woken = bucket_of(name), settings_of(name), 0
    local copy, has_rate = { running = bucket.running, tat = bucket.tat }, of and of.rate
    local line = name .. '\0' .. queue
    local from, to = '[' .. line .. '\0', '(' .. line .. '\1'
    while units > 0 or has_rate do
      local members = redis.call('ZRANGEBYLEX', LINES, from, to, 'LIMIT', 0, min(units + 1, most + 1, LINE_PAGE))
      if #members == 0 then
        break
      end
      fetch_members(members)
      for _, member in ipairs(members) do
        local r = in_line(member)
        if r then
          local taken = units_in(r, name)
          if woken == 0 and units > 0 then -- Room that the first job could not use, since it needs more than one unit.
            units = units + taken - 1
          end
          if units <= 0 or woken >= most or not fits(copy, of, taken) then
            return woken, r, units > 0 and fits(copy, of, taken)
          end
          take_room(copy, of, taken)
          change_state(r, PENDING_STATE, 0)
          units, woken = units - taken, woken + 1
        end
      end
      from = '(' .. members[#members]
    end
    return woken, nil, false
  end

  local function save_bucket(name, bucket, due)
    local idle = bucket.running == 0 and due == 0
    local value = idle and bucket.tat <= NOW and '' or pack(BUCKET, bucket.running, bucket.tat, due)
    if due ~= bucket.due then
      redis.call('ZREM', BUCKET_DUES, name)
      if due > 0 then
        redis.call('ZADD', BUCKET_DUES, due, name)
        due_changed = true
      end
    end
    if value ~= bucket.stored then
      if bucket.was_idle then
        redis.call('ZREM', IDLE_BUCKETS, name)
      end
      if value == '' then
        redis.call('HDEL', BUCKETS, name)
        return
      end
      redis.call('HSET', BUCKETS, name, value)
      if idle then
        redis.call('ZADD', IDLE_BUCKETS, bucket.tat, name)
      end
    end
  end

  -- Wake the lines of the buckets that jobs have left, `most` jobs in all, and save the buckets. Return the number of
  -- jobs that became pending. All other changes are written. A line with more jobs to wake is due at once.
  local function finish(most)
    leave_buckets()
    local woken = 0
    for name, bucket in pairs(buckets) do
      local of, units, due = settings_of(name), freed[name] or 0, 0
      local has_rate = of and of.rate
      for _, queue in ipairs(has_lines and (units > 0 or has_rate) and queues_of(name) or EMPTY) do
        local number, first, is_cut = wake_line(name, queue, units, most - woken)
        woken = woken + number
        local next_units = has_rate and first and units_in(first, name)
        if is_cut then
          due = NOW
        elseif next_units and has_place(bucket, of, next_units) then
          local time = due_time(of, bucket.tat, next_units)
          if time <= NOW then
            time = NOW + max(cost(of, next_units), 1)
            time = bucket.due > NOW and min(time, bucket.due) or time
          end
          due = due > 0 and min(due, time) or time
        end
      end
      save_bucket(name, bucket, due)
    end
    buckets, freed = {}, {}
    flush(false)
    return woken
  end

  limiter = { admit = admit, line_of = line_of, charge = charge, free = free, finish = finish }
  return limiter
end

-- Write the collected changes, and wake the lines of the buckets that jobs have left.
local function apply()
  flush(true)
  if #left > 0 or limiter then
    use_limits().finish(BATCH)
  end
end

-- Write and publish the collected changes, store the reply, and return it.
local function commit(reply)
  apply()
  publish()
  return store_reply(reply)
end
