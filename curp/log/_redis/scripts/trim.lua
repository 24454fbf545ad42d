-- ARGV: 3 configuration, 4 through. In force at once; entries are removed by remove.lua.
local through = tonumber(ARGV[4])
if not current(ARGV[3]) or through > math.max(snapshot, 0) then return refusal() end
if through > trimmed then redis.call('HSET', control, 'trimmed', text(through)) end
return {'ok', tail}
