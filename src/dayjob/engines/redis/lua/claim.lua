-- Hand out pending jobs in (priority, id) order.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the requests (shared/6_claiming.lua).
-- Answers a list for each request: id, record, id, record, ...
local kept = answered()
if kept then
  return kept.err and kept or claimed_again(kept)
end
local answers, claims = claim_all()
for _, answer in ipairs(answers) do
  if #answer > 0 then
    keep_answer(claims)
    break
  end
end
return answers
