-- Write notes and `insert` jobs, in one commit, if all notes are as expected; else nothing.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: '1' to tell of the kinds, else '0'; how many notes; for each
-- its kind, its name, flags (1 it is expected to be there, 2 it is to be there), the value that is expected and
-- the new one, as far as the flags announce them; the jobs (shared/5_insertion.lua).
-- Answers 1 if it wrote them, else 0.
local kept = answered()
if kept then
  return kept
end
local is_told = take_number() == 1
local gone, added, kinds = {}, {}, {}
for _ = 1, take_number() do
  local kind, name, given = take(), take(), take_number()
  local expected = given % 2 > 0 and take() or nil
  local value = given > 1 and take() or nil
  local place = kind .. '\0' .. name
  local from, to = '[' .. place .. '\0', '(' .. place .. '\1'
  local member = redis.call('ZRANGEBYLEX', NOTES, from, to, 'LIMIT', 0, 1)[1]
  if (member and sub(member, #place + 10)) ~= expected then
    return 0
  end
  gone[#gone + 1] = member
  if value then
    added[#added + 1] = 0
    added[#added + 1] = place .. '\0' .. NOW_TIME .. value
  end
  kinds[kind] = true
end
local _, created = insert()
-- A full server takes no more jobs; but workers have to come and go, and someone has to do the duties that
-- make room again.
flush(not created)
send('ZREM', NOTES, gone)
send('ZADD', NOTES, added)
announce()
if is_told and next(kinds) then
  local names = {}
  for kind in pairs(kinds) do
    names[#names + 1] = kind
  end
  redis.call('PUBLISH', ARGV[2], '\1' .. table.concat(names, '\1'))
end
keep_answer(1)
return 1
