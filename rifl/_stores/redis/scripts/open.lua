-- Take the store's id, made by the first ever, unless a newer release wrote here. From then on
-- a release with a lower layout refuses the store. ARGV: 5 a fresh id, 6 this release's layout
local meta = KEYS[1]
-- Writes in any case: a replica that may not is found out here.
redis.call('HSETNX', meta, 'store', ARGV[5])
redis.call('HSETNX', meta, 'layout', ARGV[6])
local layout = tonumber(redis.call('HGET', meta, 'layout'))
if layout < tonumber(ARGV[6]) then redis.call('HSET', meta, 'layout', ARGV[6]) end
local found = redis.call('HMGET', meta, 'store', 'stopped')
return {found[1], tostring(layout), found[2] or ''}
