-- End claimed jobs that can't be decoded as dead.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; for each its claim and the error.
for _, id in ipairs(take_jobs()) do
  local claim, error = take(), take()
  local r = load(id)
  if is_current(r, claim) then
    quarantine(r, error)
  end
end
apply()
publish()
return 1
