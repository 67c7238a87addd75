-- Put and delete user values.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the number of puts, their keys and values; the number of
-- deletes, their keys.
for _ = 1, take_number() do
  local key = take()
  redis.call('HSET', KV, key, take())
end
for _ = 1, take_number() do
  redis.call('HDEL', KV, take())
end
return store_reply(1)
