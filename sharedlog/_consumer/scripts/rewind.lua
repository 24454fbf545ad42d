-- Has a shard be done through another position, in a new epoch, where its fence is the number.
-- KEYS: the shard's row, its calls. ARGV: the number, position, epoch.
local row = KEYS[1]
local fence = redis.call('HGET', row, 'fence') or '0'
if fence ~= ARGV[1] then
  return {'fenced', fence}
end
redis.call('HSET', row, 'position', ARGV[2], 'epoch', ARGV[3], 'intent', '', 'takeovers', 0,
  'attempts', 0)
redis.call('HDEL', row, 'broken')
redis.call('DEL', KEYS[2])
return {'ok'}
