-- `insert`, then `claim`, in one commit.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the jobs, then the requests.
-- Answers a list of two: what `insert` and what `claim` answer.
local kept = answered()
if kept then
  return kept.err and kept or { kept[1], claimed_again(kept[2]) }
end
local enqueued, created = insert()
if created then
  flush(false)
end
local answers, claims = claim_all()
announce()
keep_answer({ enqueued, claims })
return { enqueued, answers }
