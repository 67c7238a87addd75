-- Write documents and `insert` jobs, in one commit, if all documents are as expected; else nothing.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: '1' to announce the kinds, else '0'; the number of documents; for
-- each its kind, its name, flags (1 a document is expected, 2 a document is to be written), the expected value and the
-- new one, as far as the flags announce them; the jobs (shared/6_insert.lua).
-- Returns a string: '\1' and the reply of `insert` if it wrote them, else '\0'.
local is_announced = take_number() == 1
local removed, added, kinds = {}, {}, {}
for _ = 1, take_number() do
  local kind, name, given = take(), take(), take_number()
  local expected = given % 2 > 0 and take() or nil
  local value = given > 1 and take() or nil
  local prefix = kind .. '\0' .. name
  local from, to = '[' .. prefix .. '\0', '(' .. prefix .. '\1'
  local member = redis.call('ZRANGEBYLEX', DOCUMENTS, from, to, 'LIMIT', 0, 1)[1]
  if (member and sub(member, #prefix + 10)) ~= expected then
    flush(true)
    return store_reply('\0')
  end
  removed[#removed + 1] = member
  if value then
    added[#added + 1] = 0
    added[#added + 1] = prefix .. '\0' .. NOW_TIME .. value
  end
  kinds[kind] = true
end
local reply, created = insert()
-- A full server refuses new jobs. Writes of documents alone must succeed: workers register and deregister, and the
-- leader's duties free memory.
apply_insert(not created)
send('ZREM', DOCUMENTS, removed)
send('ZADD', DOCUMENTS, added)
publish()
if is_announced and next(kinds) then
  local names = {}
  for kind in pairs(kinds) do
    names[#names + 1] = kind
  end
  redis.call('PUBLISH', ARGV[2], '\1' .. table.concat(names, '\1'))
end
return store_reply('\1' .. reply)
