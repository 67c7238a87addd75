-- Enter dead jobs of layout 1 in `deaths`, a part of them at a time; those that are there stay.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the cursor, '' to begin; how many jobs at most.
-- Answers the next cursor, '' after the last part.
local cursor, limit = take(), take_number()
local from = cursor == '' and '[' .. DEAD or '(' .. cursor
local members = redis.call('ZRANGEBYLEX', FINISHED, from, '(' .. DEAD + 1, 'LIMIT', 0, limit)
local ids = {}
for index, member in ipairs(members) do
  ids[index] = sub(member, -16)
end
fetch(ids)
for _, id in ipairs(ids) do
  local r = load(id)
  if r and r.state == DEAD then
    place_death(r, 0)
  end
end
flush(true)
return #members == limit and members[limit] or ''
