-- Hand out pending jobs in (priority, id) order.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: how many seats are left, and these; the requests
-- (shared/6_claiming.lua).
-- Answers for each request a list: id, record, id, record, ...; or the seat that it took.
local kept = answered()
if kept then
  return kept.err and kept or claimed_again(kept)
end
for _ = 1, take_number() do
  redis.call('ZREM', SEATS, take())
end
local answers, claims = claim_all()
for _, claim in ipairs(claims) do
  if #claim > 0 then
    keep_answer(claims)
    break
  end
end
return answers
