-- KEYS: 1 the control hash, 2 the stream, 3 the metadata hash.
-- ARGV: 1 '1' to write in any case; and to create a log: 2 its id, 3 its format,
-- 4 the LSN it begins behind, 5 its configuration number, 6... metadata, key and value.
local found = redis.call('HMGET', KEYS[1], 'log_id', 'format')
if ARGV[2] and found[1] then return {'exists'} end
if not found[1] and redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3]) > 0 then return {'damaged'} end
if ARGV[2] then
  redis.call('HSET', KEYS[1], 'log_id', ARGV[2], 'format', ARGV[3], 'configuration', ARGV[5],
    'tail', ARGV[4], 'trimmed', ARGV[4])
  for place = 6, #ARGV, 2 do redis.call('HSET', KEYS[3], ARGV[place], ARGV[place + 1]) end
  return {'ok', ARGV[2], ARGV[3]}
end
if not found[1] then return {'none'} end
if ARGV[1] == '1' then
  -- A write of its own, for WAIT waits for this connection's writes.
  redis.call('HSET', KEYS[1], 'opened_again', '1')
end
return {'ok', found[1], found[2]}
