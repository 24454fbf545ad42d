-- KEYS: 5... the tags' sorted sets of the entries up to there. ARGV: 4 the last LSN to go.
local through = tonumber(ARGV[4])
if through > removed and through <= tail then
  -- First what a server without room does, too.
  redis.call('XTRIM', entries, 'MINID', text(through + 1) .. '-0')
  for place = 5, #KEYS do redis.call('ZREMRANGEBYSCORE', KEYS[place], '-inf', text(through)) end
  redis.call('HSET', head, 'removed', text(through))
end
return reply('ok')
