-- The lifecycle: the rules of model/lifecycle.py. The conformance and model tests compare the two.

-- The fence: return whether the job runs under this claim.
local function is_current(r, claim)
  return r and r.state == RUNNING and r.claim == claim
end

-- Return how long a job in that final state is kept, out of three packed durations; nil is for ever.
local function retention_of(times, state)
  local first = (state - DONE) * 8 + 1
  local time = sub(times, first, first + 7)
  return time ~= NONE and to_number(time) or nil
end

-- Take the retention times: the default, and those of queues that have their own. Return a function of the queue.
local function take_retention()
  local default, own = take(), {}
  for _ = 1, take_number() do
    local queue = take()
    own[queue] = take()
  end
  return function(queue)
    return own[queue] or default
  end
end

-- Return the field of DEDUP for a key. A global key begins with NUL.
local function dedup_field(queue, dedup)
  return sub(dedup, 1, 1) == '\0' and dedup or queue .. '\0' .. dedup
end

local function release_dedup(r)
  if r.held then
    r.held = false
    holders[dedup_field(r.queue, r.dedup)] = false
  end
end

local function fail(r, message)
  r.error = message
  local failure = pack('>I4i8I2', r.attempts, NOW, #r.worker) .. r.worker .. message
  local starts, first = {}, 1
  while first + 3 <= #r.errors do
    starts[#starts + 1] = first
    first = first + 4 + unpack_from('>I4', r.errors, first)
  end
  if first ~= #r.errors + 1 then
    r.errors = '' -- it was damaged
  elseif #starts >= ERRORS_KEPT then
    r.errors = sub(r.errors, starts[#starts - ERRORS_KEPT + 2])
  end
  r.errors = r.errors .. pack('>I4', #failure) .. failure
end

local function clear_claim(r)
  r.claimed, r.lease, r.worker, r.claim = NONE, NONE, '', NO_CLAIM
end

local function finish(r, times)
  local kept = retention_of(times, r.state)
  r.finished, r.lease = NOW_TIME, NONE
  release_dedup(r)
  r.remove = kept and to_time(NOW + kept) or NONE
  r.removed = kept == 0
end

local function is_expired(r)
  return r.attempts == 0 and r.expires ~= NONE and to_number(r.expires) <= NOW
end

-- Return the member of HANDOFFS for the job's current claim.
local function handoff_member(r)
  return r.id .. r.claim
end

-- Claim a job under a key: that of the write, or for a hand-off the name of the waiting claim.
local function claim(r, lease, worker, key)
  remove_from_indexes(r)
  r.state, r.attempts, r.epoch, r.claim = RUNNING, r.attempts + 1, math.max(r.epoch + 1, NOW), key
  r.claimed, r.lease, r.worker, r.progress = NOW_TIME, to_time(NOW + lease), worker, ''
  if not r.settled then
    release_dedup(r)
  end
  add_to_indexes(r)
end

-- Return the state after a settlement, and the attempts that then count.
local function settled_state(r, transition, delay)
  if transition == ACK then
    return DONE, r.attempts
  elseif transition == DEAD_LETTER then
    return DEAD, r.attempts
  elseif transition == RELEASE then
    return PENDING_STATE, math.max(r.attempts - 1, 0)
  elseif transition == MARK_CANCELLED or r.cancel then
    return CANCELLED, r.attempts
  elseif transition == SNOOZE then
    return SCHEDULED, math.max(r.attempts - 1, 0)
  elseif r.attempts >= r.max_attempts then
    return DEAD, r.attempts
  end
  return delay > 0 and SCHEDULED or PENDING_STATE, r.attempts
end

local function settle(r, transition, delay, times, error, result, progress)
  remove_from_indexes(r)
  leave(r)
  r.progress = progress or r.progress
  if transition == NACK or transition == DEAD_LETTER then
    fail(r, error or '')
  elseif transition == SNOOZE and error then
    r.error = error
  end
  r.state, r.attempts = settled_state(r, transition, delay)
  if r.state >= DONE then
    if result or r.has_result then
      results[r.id] = result or false
    end
    r.has_result, r.is_salted = result ~= nil, result ~= nil
    finish(r, times)
  else
    if transition ~= RELEASE then
      r.run = to_time(NOW + delay)
    end
    clear_claim(r)
  end
  add_to_indexes(r)
end

-- Release a handed-off claim that was not acknowledged. The job did not run, so the attempt does not count.
local function revoke_handoff(r)
  indexes[HANDOFFS][handoff_member(r)] = false
  settle(r, RELEASE, 0)
end

-- Append a job that ended without its worker to a reply; record.ended_jobs in Python reads it.
local function report(reply, r, old_state, error)
  local ok, _, task = pcall(cmsgpack.unpack_one, r.facts, 1) -- the first item of the list
  task = ok and type(task) == 'string' and task or ''
  for _, value in ipairs({ r.id, r.queue, task, old_state, r.state, r.attempts, error }) do
    reply[#reply + 1] = value
  end
end

-- End a claim whose lease expired or whose worker is gone: another run, or dead when no attempts are left. A handed-off
-- job that was not acknowledged is reported without an error: it did not run. The last attempt of a job that was not
-- suspect does not count: another job may have ended the worker.
local function expire_claim(r, times, reason, reply)
  if redis.call('ZSCORE', HANDOFFS, handoff_member(r)) then
    revoke_handoff(r)
    return report(reply, r, RUNNING, '')
  end
  remove_from_indexes(r)
  leave(r)
  local last = r.attempts >= r.max_attempts
  local suspect = r.error == LEASE_EXPIRED_TEXT or r.error == WORKER_GONE_TEXT
  fail(r, reason)
  if last and (suspect or r.max_attempts == 1) then
    r.state = DEAD
    finish(r, times)
  else
    r.state, r.attempts = PENDING_STATE, last and r.attempts - 1 or r.attempts
    clear_claim(r)
  end
  add_to_indexes(r)
  report(reply, r, RUNNING, reason)
end

-- End a waiting job as cancelled.
local function cancel(r, times, error)
  remove_from_indexes(r)
  leave(r)
  r.state = CANCELLED
  r.error = error or r.error
  finish(r, times)
  add_to_indexes(r)
end

local function promote(r)
  remove_from_indexes(r)
  r.state = PENDING_STATE
  clear_claim(r)
  add_to_indexes(r)
end

local function requeue(r)
  remove_from_indexes(r)
  r.state, r.attempts, r.run, r.error, r.cancel = PENDING_STATE, 0, NOW_TIME, nil, false
  r.finished, r.remove, r.expires = NONE, NONE, NONE
  clear_claim(r)
  add_to_indexes(r)
end

-- Set the due time (packed) or the priority of a waiting job. A limited one becomes pending: the next claim finds its place.
local function reschedule(r, run, priority)
  local state = r.state == LIMITED and PENDING_STATE or r.state
  if run then
    r.run = run
    state = to_number(run) > NOW and SCHEDULED or PENDING_STATE
  end
  remove_from_indexes(r)
  if state ~= r.state then
    leave(r)
  end
  r.state, r.priority = state, priority or r.priority
  add_to_indexes(r)
end

-- End a claimed job that can't be decoded as dead. It is kept until it is purged, and the attempt does not count.
local function quarantine(r, error)
  remove_from_indexes(r)
  leave(r)
  r.attempts = math.max(r.attempts - 1, 0)
  fail(r, error)
  r.state = DEAD
  finish(r, NONE .. NONE .. NONE)
  add_to_indexes(r)
end
