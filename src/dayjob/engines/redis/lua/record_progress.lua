-- Store the progress of the claims that are current.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; for each its epoch and its progress.
local stored = stored_reply()
if stored then
  return stored
end
local ids = take_ids()
fetch(ids)
for _, id in ipairs(ids) do
  local epoch, progress = take_number(), take()
  local r = load(id)
  if is_current(r, epoch) then
    r.progress = progress
    save(r)
  end
end
flush(true)
return store_reply(1)
