-- KEYS: 4... the tags' sorted sets. ARGV: 3 configuration, 4 the last LSN to go.
local through = math.min(tonumber(ARGV[4]), trimmed)
if not current(ARGV[3]) then return refusal() end
for place = 4, #KEYS do redis.call('ZREMRANGEBYSCORE', KEYS[place], '-inf', text(through)) end
redis.call('XTRIM', log, 'MINID', text(through + 1) .. '-0')
return {'ok', tail}
