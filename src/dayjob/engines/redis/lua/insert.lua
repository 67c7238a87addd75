-- Store jobs with their kv writes, all or none.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the jobs (shared/5_insertion.lua).
-- Answers a string with one part for each job: '\1', or '\0' and the id of the job that is there already.
local kept = answered()
if kept then
  return kept
end
local answer, created = insert()
if created then
  flush(false)
  announce()
  keep_answer(answer)
end
return answer
