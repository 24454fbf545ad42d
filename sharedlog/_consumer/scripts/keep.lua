-- Sets a field of a hash, where a shard's fence is the number.
-- KEYS: the shard's row, the hash. ARGV: the number, the field, its value.
local fence = redis.call('HGET', KEYS[1], 'fence') or '0'
if fence ~= ARGV[1] then
  return {'fenced', fence}
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return {'ok'}
