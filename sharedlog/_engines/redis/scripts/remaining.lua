-- ARGV: 4 a key. Behind the reply's beginning: '1' if it is kept; when its term is over, how long
-- that was, and this server's time, microseconds, where it has one.
local kept = redis.call('HGET', values, ARGV[4]) and '1' or '0'
local found = redis.call('HMGET', head, 'ends:' .. ARGV[4], 'term:' .. ARGV[4])
return reply('ok', kept, found[1], found[2], text(now_us()))
