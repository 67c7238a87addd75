-- Add the dead jobs of layout 1 to `dead_index`, one page per call. Existing entries stay.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the cursor, '' to begin; the size of a page.
-- Returns the next cursor, '' after the last page.
local cursor, limit = take(), take_number()
local from = cursor == '' and '[' .. DEAD or '(' .. cursor
local members = redis.call('ZRANGEBYLEX', FINISHED, from, '(' .. DEAD + 1, 'LIMIT', 0, limit)
for _, id in ipairs(fetch_members(members)) do
  local r = load(id)
  if r and r.state == DEAD then
    index_dead(r, 0)
  end
end
flush(true)
return #members == limit and members[limit] or ''
