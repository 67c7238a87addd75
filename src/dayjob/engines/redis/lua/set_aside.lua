-- End claims as dead that handed out what can't be decoded.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; for each its epoch and what is wrong.
local ids = take_ids()
fetch(ids)
for _, id in ipairs(ids) do
  local epoch, error = take_number(), take()
  local r = load(id)
  if is_current(r, epoch) then
    set_aside(r, error)
  end
end
flush(true)
announce()
return 1
