-- Store the progress of the claims that are current.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; for each its claim and its progress.
for _, id in ipairs(take_jobs()) do
  local claim, progress = take(), take()
  local r = load(id)
  if is_current(r, claim) then
    r.progress = progress
    save(r)
  end
end
flush(true)
return store_reply(1)
