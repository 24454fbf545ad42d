-- Take the store's id, made by the first ever, unless a newer release wrote here.
-- ARGV: 5 a fresh id, 6 this release's layout
local meta = KEYS[1]
-- Writes in any case: a replica that may not is found out here.
if redis.call('HSETNX', meta, 'store', ARGV[5]) == 1 then
  redis.call('HSET', meta, 'layout', ARGV[6])
end
-- Before layout 2 none was noted.
local layout = tonumber(redis.call('HGET', meta, 'layout') or '1')
if layout < tonumber(ARGV[6]) then redis.call('HSET', meta, 'layout', ARGV[6]) end
local found = redis.call('HMGET', meta, 'store', 'stopped')
return {found[1], tostring(layout), found[2] or ''}
