-- Bring the version of an older layout up to ours, after all else that has changed since was done.
-- KEYS: where the version is. ARGV: ours.
-- Answers the version that is there now: somebody else's code may know a newer one.
local LAYOUT = KEYS[1]
local found = redis.call('GET', LAYOUT)
if found and tonumber(found) >= tonumber(ARGV[1]) then
  return found
end
redis.call('DEL', LAYOUT) -- a full server lets pass what begins with a removal
redis.call('SET', LAYOUT, ARGV[1])
return ARGV[1]
