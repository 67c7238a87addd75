-- The lifecycle, as in lifecycle.py and record.py, with which the conformance and model tests compare it.
local ERRORS_KEPT = 10

-- Whether the claim with this epoch is the one that the job runs under: the fence of every settlement.
local function is_current(r, epoch)
  return r and r.state == RUNNING and r.epoch == epoch
end

-- How long a job in that final state is kept, out of three packed durations; nil is for ever.
local function keep_of(keeps, state)
  local first = (state - DONE) * 8 + 1
  local time = sub(keeps, first, first + 7)
  return time ~= NONE and to_number(time) or nil
end

-- How long jobs of each queue are kept: the default, then the queues that have their own.
local function take_keeps()
  local default, own = take(), {}
  for _ = 1, take_number() do
    local queue = take()
    own[queue] = take()
  end
  return function(queue)
    return own[queue] or default
  end
end

local function let_go(r)
  if r.held then
    r.held = false
    holders[r.queue .. '\0' .. r.dedup] = false
  end
end

local function fail(r, message)
  r.error = message
  local failure = pack('>I4i8I2', r.attempts, NOW, #r.worker) .. r.worker .. message
  local starts, first = {}, 1
  while first <= #r.errors do
    starts[#starts + 1] = first
    first = first + 4 + unpack_from('>I4', r.errors, first)
  end
  if #starts >= ERRORS_KEPT then
    r.errors = sub(r.errors, starts[#starts - ERRORS_KEPT + 2])
  end
  r.errors = r.errors .. pack('>I4', #failure) .. failure
end

local function wait_again(r)
  r.claimed, r.lease, r.worker = NONE, NONE, ''
end

local function finish(r, keeps)
  local kept = keep_of(keeps, r.state)
  r.finished, r.lease = NOW_TIME, NONE
  let_go(r)
  r.remove = kept and to_time(NOW + kept) or NONE
  r.removed = kept == 0
end

local function is_expired(r)
  return r.attempts == 0 and r.expires ~= NONE and to_number(r.expires) <= NOW
end

-- How HANDED knows a claim.
local function claim_name(r)
  return r.id .. pack('>I4', r.epoch)
end

local function claim(r, lease, worker)
  leave(r)
  r.state, r.attempts, r.epoch = RUNNING, r.attempts + 1, r.epoch + 1
  r.claimed, r.lease, r.worker, r.progress = NOW_TIME, to_time(NOW + lease), worker, ''
  if not r.settled then
    let_go(r)
  end
  enter(r)
end

local ACK, NACK, DEAD_LETTER, RELEASE, SNOOZE, MARK_CANCELLED = 1, 2, 3, 4, 5, 6

-- The state that a settlement leads to, and the attempts that then count.
local function settled_state(r, event, delay)
  if event == ACK then
    return DONE, r.attempts
  elseif event == DEAD_LETTER then
    return DEAD, r.attempts
  elseif event == RELEASE then
    return WAITING, math.max(r.attempts - 1, 0)
  elseif event == MARK_CANCELLED or r.cancel then
    return CANCELLED, r.attempts
  elseif event == SNOOZE then
    return SCHEDULED, math.max(r.attempts - 1, 0)
  elseif r.attempts >= r.max_attempts then
    return DEAD, r.attempts
  end
  return delay > 0 and SCHEDULED or WAITING, r.attempts
end

local function settle(r, event, delay, keeps, error, result, progress)
  leave(r)
  r.progress = progress or r.progress
  if event == NACK or event == DEAD_LETTER then
    fail(r, error or '')
  elseif event == SNOOZE and error then
    r.error = error
  end
  r.state, r.attempts = settled_state(r, event, delay)
  if r.state >= DONE then
    r.result = result
    finish(r, keeps)
  else
    if event ~= RELEASE then
      r.run = to_time(NOW + delay)
    end
    wait_again(r)
  end
  enter(r)
end

-- Give a claim back that was handed over and may not have arrived: it did not run, so it does not count.
local function take_back(r, keeps)
  places[HANDED][claim_name(r)] = false
  settle(r, RELEASE, 0, keeps)
end

-- The lease ran out, or its worker is gone: another run, or dead when none is left.
local function lapse(r, keeps, reason)
  if redis.call('ZSCORE', HANDED, claim_name(r)) then
    return take_back(r, keeps)
  end
  leave(r)
  fail(r, reason)
  if r.attempts >= r.max_attempts then
    r.state = DEAD
    finish(r, keeps)
  else
    r.state = WAITING
    wait_again(r)
  end
  enter(r)
end

-- End a waiting job, because of a cancel or because it was not started in time.
local function end_waiting(r, keeps, error)
  leave(r)
  r.state = CANCELLED
  r.error = error or r.error
  finish(r, keeps)
  enter(r)
end

local function promote(r)
  leave(r)
  r.state = WAITING
  wait_again(r)
  enter(r)
end

local function requeue(r)
  leave(r)
  r.state, r.attempts, r.run, r.error, r.cancel = WAITING, 0, NOW_TIME, nil, false
  r.finished, r.remove, r.expires = NONE, NONE, NONE
  wait_again(r)
  enter(r)
end

-- A claim that handed out what can't be decoded: dead, until it is purged, as if it had not been claimed.
local function set_aside(r, error)
  leave(r)
  r.attempts = math.max(r.attempts - 1, 0)
  fail(r, error)
  r.state = DEAD
  finish(r, NONE .. NONE .. NONE)
  enter(r)
end
