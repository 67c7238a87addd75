-- Remove entries of `dead_index` whose job is not dead. Damaged records cause such entries.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the number of entries, and the entries.
for _ = 1, take_number() do
  local member = take()
  local r = load(sub(member, -16))
  local of_all, of_queue
  if r and r.state == DEAD then
    of_all, of_queue = dead_members(r)
  end
  if member ~= of_all and member ~= of_queue then
    indexes[DEAD_INDEX][member] = false
  end
end
flush(true)
return 1
