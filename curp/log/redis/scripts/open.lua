-- KEYS: 1 the control hash, 2 the stream. ARGV: 1 a new log's id, or '' to make none,
-- 2 its format, 3 '1' to write in any
-- case.
local found = redis.call('HMGET', KEYS[1], 'log_id', 'format')
if not found[1] then
  if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return {'damaged'} end
  if ARGV[1] == '' then return {'none'} end
  redis.call('HSET', KEYS[1], 'log_id', ARGV[1], 'format', ARGV[2], 'configuration', 0,
    'tail', 0, 'trimmed', 0)
  found = {ARGV[1], ARGV[2]}
end
if ARGV[3] == '1' then
  -- A write of its own, for WAIT waits for this connection's writes.
  redis.call('HSET', KEYS[1], 'opened_again', ARGV[1])
end
return {'ok', found[1], found[2]}
