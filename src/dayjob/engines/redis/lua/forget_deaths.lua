-- Remove entries of `deaths` that are no job's any more: what is left of records that were damaged.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: how many entries, and the entries.
for _ = 1, take_number() do
  local member = take()
  local r = load(sub(member, -16))
  local of_all, of_queue
  if r and r.state == DEAD then
    of_all, of_queue = death_members(r)
  end
  if member ~= of_all and member ~= of_queue then
    places[DEATHS][member] = false
  end
end
flush(true)
return 1
