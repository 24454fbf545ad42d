-- KEYS: as in prelude.lua.
-- ARGV: 1 '1' to write in any case; and to create a log: 2 its id, 3 its format, 4 a mark, 5 the LSN
-- that it begins behind, 6... keys and values.
local head, entries, values, names = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local found = redis.call('HMGET', head, 'id', 'format')
if ARGV[2] and (found[1] or found[2]) then return {'exists'} end
if not found[1] and redis.call('EXISTS', unpack(KEYS)) > 0 then
  return {'damaged'}
end
if ARGV[2] then
  redis.call('HSET', head, 'id', ARGV[2], 'format', ARGV[3], 'step', '1', 'mark', ARGV[4],
    'tail', ARGV[5], 'removed', ARGV[5], 'at_us', '0')
  for place = 6, #ARGV, 2 do
    redis.call('HSET', values, ARGV[place], ARGV[place + 1])
    redis.call('ZADD', names, 0, ARGV[place])
  end
  return {'ok', ARGV[2], ARGV[3]}
end
if not found[1] then return {'none'} end
if ARGV[1] == '1' then
  -- A write of its own, for WAIT waits for this connection's writes.
  redis.call('HSET', head, 'asked_again', '1')
end
return {'ok', found[1], found[2] or ''}
