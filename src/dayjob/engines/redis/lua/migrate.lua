-- Rename the keys of an older layout and set its version to ours, after all other changes were made.
-- KEYS: the version; pairs of old and new names. ARGV: our version.
-- Returns the version that is now there; it is higher than ours if a process with newer code migrated first.
local LAYOUT = KEYS[1]
local found = redis.call('GET', LAYOUT)
if found and tonumber(found) >= tonumber(ARGV[1]) then
  return found
end
redis.call('DEL', LAYOUT) -- a full server accepts writes that follow a removal
for index = 2, #KEYS, 2 do
  if redis.call('EXISTS', KEYS[index]) == 1 then
    redis.call('RENAME', KEYS[index], KEYS[index + 1])
  end
end
redis.call('SET', LAYOUT, ARGV[1])
return ARGV[1]
