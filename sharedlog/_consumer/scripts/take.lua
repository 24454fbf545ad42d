-- T1: sets the fence of a shard, where it is lower, and returns the checkpoint: one step.
-- KEYS: the shard's row. ARGV: the number, what became of its process (1 died, 2
-- nobody knows), whether it begins anew.
local row, number = KEYS[1], tonumber(ARGV[1])
local fence = redis.call('HGET', row, 'fence') or '0'
if tonumber(fence) >= number then
  return {'fenced', fence}
end
if ARGV[3] == '1' then
  redis.call('HSET', row, 'takeovers', 0, 'attempts', 0)
  redis.call('HDEL', row, 'broken')
elseif ARGV[2] ~= '0' then
  local takeovers = tonumber(redis.call('HGET', row, 'takeovers') or '0')
  local noted = tonumber(redis.call('HGET', row, 'attempts') or '0') > 0
  local interrupted = (ARGV[2] == '2' and noted) and 1 or 0
  redis.call('HSET', row, 'takeovers', math.max(1, takeovers) + interrupted)
end
redis.call('HSET', row, 'fence', ARGV[1])
local found = {'ok'}
local fields = {'position', 'seq', 'intent', 'takeovers', 'attempts', 'broken', 'epoch'}
for at, field in ipairs(fields) do
  found[at + 1] = redis.call('HGET', row, field) or ''
end
return found
