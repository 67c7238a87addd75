-- Give records whose head can't be read a new head, so that they can be listed and ended.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined.
for _, id in ipairs(take_jobs()) do
  load(id)
end
flush(true)
return 1
