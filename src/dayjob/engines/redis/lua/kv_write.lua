-- Put and delete user values.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: how many puts, their keys and values; how many deletes,
-- their keys.
local kept = answered()
if kept then
  return kept
end
for _ = 1, take_number() do
  local key = take()
  redis.call('HSET', KV, key, take())
end
for _ = 1, take_number() do
  redis.call('HDEL', KV, take())
end
keep_answer(1)
return 1
