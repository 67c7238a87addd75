-- End waiting jobs as cancelled; store a cancel request for running ones.
-- KEYS and the first ARGV: shared/1_keys.lua. ARGV: the ids, joined; the retention times (`take_retention`).
-- Returns a list of two: a string with one byte for each (0 not found, 1 removed, 2 requested), and the jobs that ended,
-- see report.
local ids, retention = take_jobs(), take_retention()
local replies, reported = {}, {}
for index, id in ipairs(ids) do
  local r = load(id)
  replies[index] = '\0'
  if r and r.state == RUNNING then
    r.cancel = true
    cancels[id] = true
    cancel_requested = true
    save(r)
    replies[index] = '\2'
  elseif r and r.state < RUNNING then
    local old_state = r.state
    cancel(r, retention(r.queue))
    report(reported, r, old_state, '')
    replies[index] = '\1'
  end
end
return commit({ table.concat(replies), reported })
