-- Rows that are moved conditionally: each a key of its own, so that a handler can WATCH one.
-- ARGV: 5 'get', and what they are called; or 'look' or 'move', and for each its name, what it
-- has to be (empty: not there), and, of 'move', what it becomes: all or none.
if went_backwards() then return {'backwards', '0'} end
local what = ARGV[5]
local function row(name) return global .. 'row:' .. name end

if what == 'get' then
  local found = {}
  for at = 6, #ARGV do table.insert(found, redis.call('GET', row(ARGV[at]))) end
  return tell('rows', unpack(found))
end
for at = 6, #ARGV, 3 do
  if (redis.call('GET', row(ARGV[at])) or '') ~= ARGV[at + 1] then return tell('stale') end
end
if what == 'look' then return tell('same') end
for at = 6, #ARGV, 3 do redis.call('SET', row(ARGV[at]), ARGV[at + 2]) end
return reply('moved')
