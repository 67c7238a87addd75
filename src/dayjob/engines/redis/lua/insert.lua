-- Store jobs with their kv writes, all or none. A single job that comes to an empty queue is claimed for the claim that
-- has waited there longest, and handed off to it.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the jobs (shared/6_insert.lua).
-- Returns a string with one part for each job: '\1', or '\0' and the id of the existing job; or see full_queue.
local LARGEST = 65536 -- bytes of a job that is handed off

-- Return whether a new job may be handed off. A job with limits or a turn is left to a claim. A job whose claim would
-- release its dedup key is not handed off: the release is a removal, and as the first write it would make a full server
-- accept the rest.
local function may_be_handed_off(r)
  return r.state == PENDING_STATE and not r.limits and not is_expired(r) and (r.settled or not r.held)
    and #r.facts + r.payload_size <= LARGEST
end

local reply, r = insert()
local full = full_queue()
if full then
  return store_reply(full)
end
local waiting, removed = nil, {}
if r and #reply == 1 and ARGV[1] == '' and may_be_handed_off(r) then
  waiting, removed = longest_waiting(r.queue, NOW)
end
if waiting then
  claim(r, waiting.lease, waiting.worker, waiting.name)
  r.encoded = encode(r)
  indexes[PENDING][pending_member(r)], indexes[EXPIRIES][r.id] = nil, nil -- they were never written
  claimable[r.queue] = nil
end
apply_insert(not r)
send('ZREM', WAITING_CLAIMS, removed)
if waiting then
  hand_off(waiting, r.id, r.payload_size > 0 and '' or r.encoded, NOW)
end
publish()
return store_reply(reply)
