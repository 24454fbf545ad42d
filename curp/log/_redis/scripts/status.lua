-- ARGV: 3 a metadata key, or ''. The reply: ok, tail, trimmed, leadership, value.
local leader = redis.call('HMGET', control, 'replica', 'address', 'expires_ms', 'term_ms')
return {'ok', tail, trimmed, configuration, leader[1] or '', leader[2] or '', leader[3] or '0',
  leader[4] or '0', text(now_ms()), ARGV[3] ~= '' and redis.call('HGET', metadata, ARGV[3])}
